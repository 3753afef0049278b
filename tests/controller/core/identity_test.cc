// Identity of nodes and jobs: a foreign worker, a controller with an empty store, and one with an older copy of its
// store. None of them may harm running jobs.

#include <limits>
#include <map>

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class IdentityTest : public ::testing::Test, protected World {
 protected:
  void start(int steps = 3) {
    add_node("n1");
    add_node("n2");
    ASSERT_TRUE(submit(spec("a")).ok());
    loaded("a", 0);
    for (int64_t step = 1; step <= steps; ++step) train("a", step);
  }
  int stops() {
    int found = 0;
    for (auto& [name, node] : nodes) found += node.count(v1::ControllerMessage::kStop);
    return found;
  }
  void die(const std::string& node, int rank) { exit_rank(nodes.at(node), key("a"), rank, -1, 9); }
  NodeView view(const std::string& name) { return *reconciler->node(name); }
  std::vector<std::string> node_events(const std::string& name) {
    std::vector<std::string> reasons;
    const auto records = store::scan_all(store, node_events_prefix(name));
    for (const auto& record : *records) reasons.push_back(job::decode<job::EventRecord>(record.value)->reason);
    return reasons;
  }
};

// --- Nodes of another cluster ---

TEST_F(IdentityTest, WorkerOfAnotherClusterIsRefusedAndListed) {
  FakeNode stranger("n9");
  stranger.cluster = "other";
  const absl::Status refused = reconciler->open_session(hello_of(stranger), std::make_shared<FakeSession>());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::reason(refused), "WRONG_CLUSTER");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("belongs to cluster other"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cluster test"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--adopt-cluster"));
  ASSERT_THAT(reconciler->nodes(), SizeIs(1));
  EXPECT_EQ(view("n9").node.state, core::NodeState::kRefused);
  EXPECT_THAT(view("n9").refusal, HasSubstr("WRONG_CLUSTER"));
  advance(absl::Seconds(61));
  EXPECT_THAT(reconciler->nodes(), SizeIs(0)) << "it has stopped trying";
  stranger.cluster = "test";
  EXPECT_TRUE(reconciler->open_session(hello_of(stranger), std::make_shared<FakeSession>()).ok());
}

// A worker that retries each second gives one event per minute.
TEST_F(IdentityTest, RefusalGivesOneEventAMinute) {
  FakeNode& node = add_node("n1");
  disconnect(node);
  node.cluster = "other";
  for (int second = 0; second < 90; ++second) {
    EXPECT_FALSE(reconciler->open_session(hello_of(node), std::make_shared<FakeSession>()).ok());
    advance(absl::Seconds(1));
  }
  const std::vector<std::string> events = node_events("n1");
  EXPECT_EQ(std::count(events.begin(), events.end(), "NodeRefused"), 2);
  EXPECT_EQ(view("n1").node.state, core::NodeState::kRefused);
}

// --- Jobs that the store does not know ---

TEST_F(IdentityTest, AnEmptyControllerStopsNothing) {
  start();
  const FakeNode::Key old = key("a");
  crash_to({});
  const int acks = nodes.at("n1").count(v1::ControllerMessage::kEventsAck);
  connect_all();
  for (int second = 0; second < 5; ++second) {
    for (auto& [name, node] : nodes) ++node.attempts.at(old).step;
    event(nodes.at("n1"), old, 0, R"({"kind":"step","step":4,"metrics":{}})");
    advance(absl::Seconds(1));
  }
  EXPECT_EQ(stops(), 0);
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kForget), 0);
  ASSERT_THAT(view("n1").unknown, SizeIs(1));
  const auto [found, stray] = view("n1").unknown.front();
  EXPECT_EQ(found, old);
  EXPECT_EQ(stray.job, "projects/default/jobs/a");
  EXPECT_EQ(stray.ranks, std::vector<int>{0});
  EXPECT_EQ(stray.step, 8);
  const std::vector<std::string> events = node_events("n1");
  EXPECT_EQ(std::count(events.begin(), events.end(), "UnknownAttempt"), 1);
  // Events of its ranks stay on the node, for the controller that knows the job.
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kEventsAck), acks);
}

TEST_F(IdentityTest, AnUnknownAttemptHoldsItsDevices) {
  start();
  crash_to({});
  connect_all();
  EXPECT_EQ(view("n1").devices_used, 1);
  ASSERT_TRUE(submit(spec("b", 1, 0)).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("b"), "QUEUED");
  add_node("n3");
  advance(absl::Seconds(1));
  EXPECT_EQ(state("b"), "STARTING");
  EXPECT_EQ(job("b")->attempts[0]->placements[0].node, "n3");
}

// The node also keeps the end of the attempt, because a restored store needs it.
TEST_F(IdentityTest, TheEndOfAnUnknownAttemptIsNotForgotten) {
  start();
  const FakeNode::Key old = key("a");
  const auto copy = copy_store();
  crash_to({});
  connect_all();
  exit_rank(nodes.at("n1"), old, 0, 0, 0);
  exit_rank(nodes.at("n2"), old, 1, 0, 0);
  settle();
  EXPECT_EQ(view("n1").devices_used, 0);
  EXPECT_EQ(nodes.at("n1").attempts.count(old), 1u);
  crash_to(copy);
  connect_all();
  EXPECT_EQ(state("a"), "SUCCEEDED");
}

// The request to stop may be lost with the session.
TEST_F(IdentityTest, StopOfAnUnknownAttemptIsRepeatedInTheNextSession) {
  start();
  const FakeNode::Key old = key("a");
  crash_to({});
  connect_all();
  stops_at_once = false;
  reconciler->stop_unknown("n1", old.first, absl::Seconds(30), [](const auto&) {});
  settle();
  stops_at_once = true;
  connect(nodes.at("n1"));
  EXPECT_EQ(stops(), 2);
  EXPECT_EQ(nodes.at("n1").attempts.count(old), 0u);
  EXPECT_EQ(view("n1").devices_used, 0);
}

TEST_F(IdentityTest, OperatorCanEndAnUnknownAttempt) {
  start();
  const FakeNode::Key old = key("a");
  crash_to({});
  connect_all();
  absl::Status status;
  const auto stop = [&](const std::string& node, const std::string& uid) {
    reconciler->stop_unknown(node, uid, absl::Seconds(30), [&](const auto& result) { status = result.status(); });
    settle();
  };
  stop("n1", "nonsense");
  EXPECT_EQ(rpc::reason(status), "JOB_NOT_UNKNOWN");
  stop("nowhere", old.first);
  EXPECT_EQ(rpc::reason(status), "NODE_NOT_FOUND");
  stop("n1", old.first);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(stops(), 1) << "the stop of the other node's part was not requested";
  bool saves = false;
  for (const auto& message : nodes.at("n1").received) saves = saves || message.stop().save();
  EXPECT_TRUE(saves);
  EXPECT_EQ(nodes.at("n1").attempts.count(old), 0u);
  EXPECT_THAT(view("n1").unknown, SizeIs(0));
  EXPECT_EQ(view("n1").devices_used, 0);
}

// An attempt of a known, finished job is stopped as usual, and nothing is placed on its devices before it is gone.
TEST_F(IdentityTest, LeftAttemptOfACancelledJobHoldsItsDevices) {
  start();
  const FakeNode::Key old = key("a");
  disconnect(nodes.at("n2"));
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(120));
  ASSERT_EQ(state("a"), "STOPPING") << "its rank may still train";
  stops_at_once = false;
  connect(nodes.at("n2"));
  ASSERT_TRUE(submit(spec("b")).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("b"), "QUEUED");
  EXPECT_GT(nodes.at("n2").count(v1::ControllerMessage::kStop), 0);
  exit_rank(nodes.at("n2"), old, 1, -1, 9);
  stops_at_once = true;
  settle();
  advance(absl::Seconds(1));
  EXPECT_EQ(state("b"), "STARTING");
}

// --- An older copy of the store ---

class OlderCopyTest : public IdentityTest {
 protected:
  // The copy knows attempt 1; the nodes run attempt 3.
  void SetUp() override {
    start();
    copy_ = copy_store();
    for (int attempt = 2; attempt <= 3; ++attempt) {
      die("n1", 0);
      settle();
      loaded("a", 3);
      train("a", 2 + attempt);
    }
    ASSERT_EQ(job("a")->attempts.size(), 3u);
  }
  std::vector<store::Record> copy_;
};

// The nodes know what the copy lacks: the step from which the attempt resumed, and how the one before it ended.
TEST_F(IdentityTest, AdoptedAttemptKeepsItsHistory) {
  start();
  const std::vector<store::Record> copy = copy_store();
  die("n1", 0);
  settle();
  loaded("a", 50);
  train("a", 51);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  const std::string cause = job("a")->attempts[0]->end_cause, why = job("a")->attempts[0]->end_message;
  ASSERT_NE(cause, "STALE_ATTEMPT");
  crash_to(copy);
  connect_all();
  train("a", 52);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, cause);
  EXPECT_EQ(job("a")->attempts[0]->end_message, why);
  EXPECT_EQ(job("a")->attempts[1]->resumed_step, 50);
  const auto records = store::scan_all(store, job_events_prefix(job("a")->record->uid));
  EXPECT_THAT(job::decode<job::EventRecord>(records->back().value)->message,
              ::testing::HasSubstr("training from step 50"));
}

TEST_F(OlderCopyTest, JobContinuesUntouched) {
  const int before = stops();
  const int prepares = nodes.at("n1").count(v1::ControllerMessage::kPrepare);
  crash_to(copy_);
  connect_all();
  EXPECT_EQ(job("a")->record->attempts, 3);
  EXPECT_EQ(count_events("a", "AttemptAdopted"), 1);
  train("a", 6);
  advance(absl::Seconds(20));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(stops(), before + 1) << "only the attempt of the copy, where it might still run";
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kPrepare), prepares);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "STALE_ATTEMPT");
  EXPECT_EQ(job("a")->progress.step, 6);
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
}

// Reports that do not add up to an attempt with this job's ranks: the number is used up, and the rest is ignored.
TEST_F(OlderCopyTest, InconsistentPlacementsAreNotAdopted) {
  using Rows = std::vector<std::pair<std::string, int>>;
  const std::map<std::string, FakeNode> running = nodes;
  for (const Rows& rows : {Rows{{"n[1-999999999]", 1}}, Rows{{"n[1-2]", 2}}, Rows{{"n1", 1}}, Rows{{"n1,n1", 1}},
                           Rows{{"n1", 2}}, Rows{{"n1", 1}, {"n2", 1}, {"n3", 1}}, Rows{{"n[1", 1}}, Rows{{"n1", 0}},
                           Rows{{"n1", std::numeric_limits<int>::max()}, {"n2", std::numeric_limits<int>::max()}},
                           Rows{{"n1", 1}, {"n2", -1}}, Rows{{"n1", 1}, {"N/2", 1}}, Rows{{"", 2}}}) {
    SCOPED_TRACE(rows[0].first);
    nodes = running;
    crash_to(copy_);
    v1::Register hello = hello_of(nodes.at("n2"));
    hello.mutable_inventory(0)->clear_nodes();
    for (const auto& [names, ranks] : rows) {
      hello.mutable_inventory(0)->add_nodes()->set_names(names);
      hello.mutable_inventory(0)->mutable_nodes()->rbegin()->set_ranks(ranks);
    }
    nodes.at("n2").session = std::make_shared<FakeSession>();
    ASSERT_TRUE(reconciler->open_session(hello, nodes.at("n2").session, "peer").ok());
    settle();
    EXPECT_EQ(count_events("a", "AttemptAdopted"), 0);
    EXPECT_EQ(job("a")->record->attempts, 3);
    EXPECT_EQ(count_events("a", "AttemptNumberRaised"), 1);
  }
}

TEST_F(OlderCopyTest, AdoptedAttemptRecoversLikeAnyOther) {
  crash_to(copy_);
  connect_all();
  train("a", 6);
  die("n2", 1);
  settle();
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(key("a").second, 4);
}

TEST_F(OlderCopyTest, NodeUnknownToTheCopyMayBePartOfAnAttempt) {
  add_node("n3");
  destroy(nodes.at("n1"));
  settle();
  die("n2", 1);
  advance(absl::Seconds(10));
  ASSERT_EQ(key("a").second, 4);
  ASSERT_EQ(job("a")->attempts[3]->placements[1].node, "n3");
  loaded("a", 5);
  train("a", 6);
  crash_to(copy_);
  connect(nodes.at("n2"));
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(key("a").second, 4);
  connect(nodes.at("n3"));
  train("a", 7);
  EXPECT_EQ(state("a"), "RUNNING");
}

TEST_F(OlderCopyTest, AttemptThatCannotBeAdoptedSavesFirst) {
  for (auto& [name, node] : nodes)
    node.attempts.at(key("a")).launch = nullptr;  // A worker of an older version does not report its launch.
  stops_at_once = false;
  crash_to(copy_);
  connect_all();
  advance(absl::Seconds(1));
  const auto& received = nodes.at("n1").received;
  const auto stop = std::find_if(received.rbegin(), received.rend(), [](const auto& m) { return m.has_stop(); });
  ASSERT_NE(stop, received.rend());
  EXPECT_TRUE(stop->stop().save());
  EXPECT_EQ(stop->stop().id().number(), 3);
  EXPECT_EQ(job("a")->pending_reason, "OLD_ATTEMPT_SAVES");
  stops_at_once = true;
  advance(absl::Seconds(3));
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(key("a").second, 4);
}

TEST_F(OlderCopyTest, CancelledJobSavesItsNewerAttempt) {
  crash_to(copy_);
  ASSERT_TRUE(cancel("a").ok());
  connect_all();
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(job("a")->attempts.back()->number, 3);
  EXPECT_EQ(job("a")->attempts.back()->exits[0].exit_code, 16);
}

// The nodes no longer run the job but remember its attempt numbers: such refusals are not failures of the job.
TEST_F(OlderCopyTest, RefusedNumbersAreSkippedAndDoNotCount) {
  nodes.at("n1").attempts.clear();
  nodes.at("n2").attempts.clear();
  nodes.at("n1").highest[key("a").first] = 8;
  nodes.at("n2").highest[key("a").first] = 8;
  crash_to(copy_);
  connect_all();
  advance(absl::Seconds(2));
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(key("a").second, 9);
  EXPECT_LE(job("a")->record->history.without_progress, 1) << "for the copy's attempt, which has ended";
}

// A fence of the job's own newer attempt is not a failure either; a rank meets it if the new attempt runs on other
// nodes.
TEST_F(OlderCopyTest, FenceOfTheJobsNewerAttemptRaisesTheNumber) {
  crash_to(copy_);
  for (auto& [name, node] : nodes) node.attempts.clear();
  for (auto& [name, node] : nodes) node.highest.clear();
  connect_all();
  ASSERT_EQ(key("a").second, 2);
  for (const int holder : {7, 9}) {
    event(
        nodes.at("n1"), key("a"), 0,
        absl::StrCat(R"({"kind":"error","class":"fenced","reason":"FENCED","message":"a newer attempt","holder_job":")",
                     key("a").first, R"(","holder_attempt":)", holder, "}"));
    exit_rank(nodes.at("n1"), key("a"), 0, rank_protocol::kExitFenced, 0);
    settle();
    EXPECT_EQ(key("a").second, holder + 1);
    EXPECT_EQ(state("a"), "STARTING");
  }
  EXPECT_EQ(job("a")->attempts[1]->end_cause, "STALE_ATTEMPT");
  EXPECT_LE(job("a")->record->history.without_progress, 1);
}

}  // namespace
}  // namespace titan::reconcile
