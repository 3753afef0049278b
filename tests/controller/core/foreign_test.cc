// A certificate of one node controls only that node: its reports about jobs that are not placed there change only what
// is known about the node itself, and give one event.

#include <functional>

#include "absl/strings/match.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class ForeignTest : public World, public ::testing::Test {
 protected:
  // Job "a" trains on n1 and n2; n3 is not part of it.
  void SetUp() override {
    add_node("n1");
    add_node("n2");
    ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
    train("a", 7);
    add_node("n3");
    advance(absl::Seconds(1));
    key_ = {job("a")->record->uid, 1};
  }

  // Returns all records of jobs.
  std::map<std::string, std::string> records() {
    std::map<std::string, std::string> all;
    for (const store::Record& record : copy_store()) {
      if (!absl::StrContains(record.key, "node")) all[record.key] = record.value;
    }
    return all;
  }
  int foreign_reports(const std::string& node) {
    int count = 0;
    const auto written = store::scan_all(store, node_events_prefix(node));
    for (const auto& record : *written) {
      const auto event = job::decode<job::EventRecord>(record.value);
      count += event->reason == "NodeSpeaksForOthers";
      const bool names_it = absl::StrContains(event->message, job("a")->record->name);
      EXPECT_EQ(event->job == job("a")->record->name, names_it)
          << event->message << ": visible to the users who may see the job";
    }
    return count;
  }
  v1::AttemptInventory* claim(v1::Register& hello, int number, const std::vector<std::string>& placed_on) {
    v1::AttemptInventory* item = hello.add_inventory();
    item->mutable_id()->set_job_uid(key_.first);
    item->mutable_id()->set_number(number);
    item->set_phase(v1::AttemptReport::STARTED);
    for (const std::string& name : placed_on) {
      item->add_nodes()->set_names(name);
      item->mutable_nodes()->rbegin()->set_ranks(1);
    }
    return item;
  }
  void reconnect(FakeNode& node, const v1::Register& hello) {
    node.session = std::make_shared<FakeSession>();
    ASSERT_TRUE(reconciler->open_session(hello, node.session, "peer").ok());
    settle();
  }
  // Checks that the job is unchanged and that its nodes got no commands.
  void expect_untouched(const std::map<std::string, std::string>& before, const char* what) {
    settle();
    EXPECT_EQ(records(), before) << what;
    EXPECT_EQ(state("a"), "RUNNING") << what;
    EXPECT_EQ(job("a")->progress.step, 7) << what;
    for (const char* node : {"n1", "n2"}) EXPECT_EQ(nodes.at(node).count(v1::ControllerMessage::kStop), 0) << what;
  }

  FakeNode::Key key_;
};

v1::AttemptId id_of(const FakeNode::Key& key) {
  v1::AttemptId id;
  id.set_job_uid(key.first);
  id.set_number(key.second);
  return id;
}

TEST_F(ForeignTest, MessagesAboutJobsElsewhereAreIgnored) {
  struct Lie {
    const char* what;
    std::function<void(v1::WorkerMessage&)> write;
  };
  const auto report = [this](v1::AttemptReport::Phase phase) {
    return [this, phase](v1::WorkerMessage& message) {
      *message.mutable_attempt()->mutable_id() = id_of(key_);
      message.mutable_attempt()->set_phase(phase);
      message.mutable_attempt()->set_store_port(666);
      message.mutable_attempt()->set_folder_id("0123456789abcdef0123456789abcdef");
      message.mutable_attempt()->add_exits()->set_exit_code(1);
      message.mutable_attempt()->set_error_reason("LAUNCH_FAILED");
      message.mutable_attempt()->set_highest_attempt(1000);
    };
  };
  const auto events = [this](int attempt, const char* json) {
    return [this, attempt, json](v1::WorkerMessage& message) {
      *message.mutable_events()->mutable_id() = id_of({key_.first, attempt});
      message.mutable_events()->add_events()->set_sequence(99);
      message.mutable_events()->mutable_events(0)->set_json(json);
    };
  };
  const std::vector<Lie> lies = {
      {"the end of its ranks", report(v1::AttemptReport::ENDED)},
      {"a refusal", report(v1::AttemptReport::REFUSED)},
      {"that it is prepared", report(v1::AttemptReport::PREPARED)},
      {"that it has started", report(v1::AttemptReport::STARTED)},
      {"a step", events(1, R"({"kind":"step","step":500,"metrics":{"loss_metrics/global_avg_loss":0}})")},
      {"an error", events(1, R"({"kind":"error","class":"user","reason":"X","message":"y"})")},
      {"a checkpoint of an attempt that never existed",
       events(9, R"({"kind":"checkpoint_committed","step":500,"full":true,"seconds":1})")},
      {"a beat",
       [this](v1::WorkerMessage& message) {
         v1::AttemptBeat* beat = message.mutable_beat()->add_attempts();
         *beat->mutable_id() = id_of(key_);
         beat->add_ranks()->set_step(500);
       }},
      {"an answer to a request to another node",
       [](v1::WorkerMessage& message) { message.mutable_log()->set_request(1); }},
      {"a trace requested from another node",
       [](v1::WorkerMessage& message) { message.mutable_trace()->set_request(1); }},
  };
  const std::map<std::string, std::string> before = records();
  int sessions = 0;
  for (const Lie& lie : lies) {
    FakeNode& liar = nodes.at("n3");
    v1::WorkerMessage message;
    lie.write(message);
    liar.received.clear();
    deliver(liar, message);
    deliver(liar, message);
    expect_untouched(before, lie.what);
    EXPECT_EQ(foreign_reports("n3"), ++sessions) << lie.what << ": once a session";
    EXPECT_EQ(liar.count(v1::ControllerMessage::kEventsAck), 0) << lie.what;
    EXPECT_EQ(liar.count(v1::ControllerMessage::kStart), 0) << lie.what;
    liar.attempts.clear();
    disconnect(liar);
    connect(liar);
  }
}

// A node of the job is believed only about its own ranks.
TEST_F(ForeignTest, BeatsAboutOtherNodesRanksAreIgnored) {
  const std::map<std::string, std::string> before = records();
  v1::WorkerMessage message;
  v1::AttemptBeat* beat = message.mutable_beat()->add_attempts();
  *beat->mutable_id() = id_of(key_);
  for (const int rank : {1, 0}) {
    beat->add_ranks()->set_rank(rank);
    beat->mutable_ranks()->rbegin()->set_step(500);
  }
  deliver(nodes.at("n2"), message);
  expect_untouched(before, "beat");
  EXPECT_EQ(foreign_reports("n2"), 1);
}

// After a restart a controller learns from its nodes what its store may lack. Later there is nothing to learn, and a
// claimed newer attempt does not end the running one.
TEST_F(ForeignTest, KnownNodesCannotClaimANewerAttempt) {
  FakeNode& liar = nodes.at("n3");
  const std::map<std::string, std::string> before = records();
  int sessions = 0;
  for (const int number : {2, 1000, 2'147'483'647}) {
    v1::Register hello = hello_of(liar);
    claim(hello, number, {"n3", "n3"});
    reconnect(liar, hello);
    expect_untouched(before, "inventory");
    EXPECT_EQ(foreign_reports("n3"), ++sessions);
    EXPECT_EQ(job("a")->attempts.size(), 1u);
  }
}

// Even at its start a controller does not believe a number that is beyond any lost writes, or an attempt in which the
// node has no part.
TEST_F(ForeignTest, ImpossibleAttemptsAreNeverBelieved) {
  for (const auto& [number, placed] :
       std::map<int, std::vector<std::string>>{{2'147'483'647, {"n3", "n3"}}, {2, {"n1", "n2"}}}) {
    crash();
    connect(nodes.at("n1"));
    connect(nodes.at("n2"));
    v1::Register hello = hello_of(nodes.at("n3"));
    claim(hello, number, placed);
    reconnect(nodes.at("n3"), hello);
    EXPECT_EQ(state("a"), "RUNNING") << number;
    EXPECT_EQ(job("a")->attempts.size(), 1u) << number;
    EXPECT_EQ(job("a")->attempts.back()->number, 1) << number;
    EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kStop), 0) << number;
  }
}

// Attempts of unknown jobs are listed, and their number per node is bounded.
TEST_F(ForeignTest, UnknownAttemptsAreBounded) {
  v1::Register hello = hello_of(nodes.at("n3"));
  for (int i = 0; i < 10'100; ++i) {
    v1::AttemptInventory* item = hello.add_inventory();
    item->mutable_id()->set_job_uid(absl::StrCat("x", i));
    item->mutable_id()->set_number(1);
    item->set_phase(v1::AttemptReport::ENDED);
  }
  reconnect(nodes.at("n3"), hello);
  EXPECT_EQ(foreign_reports("n3"), 1);
  EXPECT_EQ(reconciler->node("n3")->unknown.size(), 10'000u);
}

// The device counts that a node reports for unknown attempts are bounded too, because they are added up.
TEST_F(ForeignTest, DevicesOfUnknownAttemptsAreBounded) {
  v1::Register hello = hello_of(nodes.at("n3"));
  for (const int devices : {2'147'483'647, 2'147'483'647, -5}) {
    v1::AttemptInventory* item = hello.add_inventory();
    item->mutable_id()->set_job_uid(absl::StrCat("x", hello.inventory_size()));
    item->mutable_id()->set_number(1);
    item->set_phase(v1::AttemptReport::STARTED);
    item->set_devices(devices);
  }
  reconnect(nodes.at("n3"), hello);
  EXPECT_EQ(reconciler->node("n3")->unknown.size(), 3u);
  EXPECT_EQ(reconciler->node("n3")->devices_used, 2 * core::kMaxDevices);
}

// The highest attempt number that a node of the job can report is bounded too: numbers must not run out.
TEST_F(ForeignTest, NodeCannotExhaustAttemptNumbers) {
  FakeNode& node = nodes.at("n1");
  v1::WorkerMessage message;
  *message.mutable_attempt()->mutable_id() = id_of(key_);
  message.mutable_attempt()->set_phase(v1::AttemptReport::REFUSED);
  message.mutable_attempt()->set_error_reason("STALE_ATTEMPT");
  message.mutable_attempt()->set_highest_attempt(2'147'483'647);
  node.attempts.clear();
  deliver(node, message);
  advance(absl::Seconds(30));
  EXPECT_GT(job("a")->attempts.size(), 1u);
  EXPECT_LT(job("a")->record->attempts, 20'000);
}

}  // namespace
}  // namespace titan::reconcile
