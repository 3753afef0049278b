// A store that a controller of version 0.1 wrote, recorded by tests/controller/store/data/record.py. Every later
// version must read it without loss, and the cluster must resume from it.

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "controller/store/sqlite_store.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using nlohmann::json;

class RecordedStoreTest : public ::testing::TestWithParam<std::string>, protected World {
 protected:
  void SetUp() override {
    const std::string recording = data() + "/" + GetParam();
    expected_ = json::parse(std::ifstream(recording + ".json"));
    // A copy, because the present build writes to it.
    const std::string copy = folder_.file("store.db");
    std::filesystem::copy(recording + ".db", copy);
    const auto opened = store::SqliteStore::open(copy);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE((*opened)->quarantined().empty());
    const auto records = store::scan_all(**opened, "");
    ASSERT_TRUE(records.ok());
    for (const store::Record& record : *records) {
      if (!absl::StartsWith(record.key, node_key(""))) continue;
      const auto node = job::decode<job::NodeRecord>(record.value);
      ASSERT_TRUE(node.ok()) << record.key;
      FakeNode& fake = nodes.emplace(node->name, FakeNode(node->name, node->devices)).first->second;
      fake.instance = node->instance;
    }
    ASSERT_EQ(nodes.size(), 2u);
    crash_to(*records);
  }
  static std::string data() { return absl::StrCat(getenv("TITAN_SOURCE"), "/tests/controller/store/data"); }

  JobViewPtr recorded(const std::string& name) {
    return reconciler->published().find(expected_["jobs"][name]["uid"].get<std::string>());
  }
  std::string state_of(const std::string& name) { return std::string(job::name(recorded(name)->record->state)); }
  // Makes the nodes run the attempt that had not ended when the controller did.
  void start_running_attempt() {
    const json& attempt = expected_["jobs"]["running"]["attempts"].back();
    for (const json& place : attempt["placements"]) {
      FakeNode& node = nodes.at(place[0]);
      FakeNode::Attempt& part = node.attempts[running()];
      part.phase = v1::AttemptReport::STARTED;
      for (int i = 0; i < place[2]; ++i) part.ranks.push_back(place[1].get<int>() + i);
      part.leader = part.ranks[0] == 0;
      part.step = 1000;
      node.highest[running().first] = running().second;
    }
  }
  FakeNode::Key running() const {
    const json& job = expected_["jobs"]["running"];
    return {job["uid"], job["attempts"].back()["number"]};
  }
  int commands() const {
    int all = 0;
    for (const auto& [name, node] : nodes) {
      for (const auto kind :
           {v1::ControllerMessage::kPrepare, v1::ControllerMessage::kStop, v1::ControllerMessage::kForget}) {
        all += node.count(kind);
      }
    }
    return all;
  }

  json expected_;
  rank_protocol::TempFolder folder_;
};

TEST_P(RecordedStoreTest, NothingIsLost) {
  ASSERT_EQ(expected_["jobs"].size(), 5u);
  for (const auto& [name, job] : expected_["jobs"].items()) {
    const JobViewPtr view = recorded(name);
    ASSERT_NE(view, nullptr) << name;
    EXPECT_EQ(state_of(name), job["state"]) << name;
    EXPECT_EQ(view->record->failure_reason, job["failure_reason"]) << name;
    EXPECT_EQ(view->record->labels, job["labels"]) << name;
    EXPECT_EQ(view->record->owner, job["owner"]) << name;
    EXPECT_EQ(view->record->spec.priority, job["priority"]) << name;
    ASSERT_EQ(view->attempts.size(), job["attempts"].size()) << name;
    for (size_t i = 0; i < view->attempts.size(); ++i) {
      const job::AttemptRecord& attempt = *view->attempts[i];
      const json& was = job["attempts"][i];
      EXPECT_EQ(attempt.number, was["number"]) << name;
      EXPECT_EQ(attempt.end_cause, was["end_cause"]) << name;
      ASSERT_EQ(attempt.placements.size(), was["placements"].size()) << name;
      for (size_t p = 0; p < attempt.placements.size(); ++p) {
        EXPECT_EQ(attempt.placements[p].node, was["placements"][p][0]);
        EXPECT_EQ(attempt.placements[p].first_rank, was["placements"][p][1]);
        EXPECT_EQ(attempt.placements[p].num_ranks, was["placements"][p][2]);
        EXPECT_EQ(attempt.placements[p].devices, was["placements"][p][3]);
        EXPECT_EQ(attempt.placements[p].devices.size(), static_cast<size_t>(attempt.placements[p].num_ranks));
      }
    }
    EXPECT_FALSE(store::scan_all(store, job_events_prefix(view->record->uid))->empty()) << name;
  }
  const std::string deleted = expected_["deleted"];
  EXPECT_EQ(reconciler->published().find(deleted), nullptr);
  const auto tombstone = job::decode<job::Tombstone>((*store.get(core::deleted_key(deleted)))->value);
  ASSERT_TRUE(tombstone.ok()) << tombstone.status();
  EXPECT_EQ(tombstone->actor, expected_["jobs"]["done"]["owner"]);
  for (const NodeView& view : reconciler->nodes()) {
    const std::string& name = view.node.record.name;
    EXPECT_EQ(view.node.record.cordoned, expected_["cordoned"].contains(name)) << name;
    EXPECT_EQ(view.node.record.cordon_reason, expected_["cordoned"].value(name, ""));
  }
}

// The ranks have trained all the time: they are adopted unchanged. (A repeated Start has no effect.)
TEST_P(RecordedStoreTest, RunningAttemptIsAdopted) {
  start_running_attempt();
  connect_all();
  advance(absl::Seconds(20));
  EXPECT_EQ(state_of("running"), "RUNNING");
  EXPECT_EQ(recorded("running")->attempts.size(), 2u);
  EXPECT_EQ(commands(), 0);
  EXPECT_EQ(state_of("queued"), "QUEUED");
  EXPECT_FALSE(recorded("queued")->pending_reason.empty());
}

// After a later failure, the next attempt goes to the same nodes as far as possible.
TEST_P(RecordedStoreTest, RunningJobRecovers) {
  start_running_attempt();
  connect_all();
  advance(absl::Seconds(2));
  reconciler->cordon("n2", false, "", [](const auto& done) { EXPECT_TRUE(done.ok()); });
  settle();
  exit_rank(nodes.at("n2"), running(), 1, -1, SIGKILL);
  settle();
  advance(absl::Seconds(10));
  ASSERT_EQ(recorded("running")->attempts.size(), 3u);
  EXPECT_EQ(recorded("running")->attempts[1]->end_cause, "RANK_KILLED");
  EXPECT_EQ(recorded("running")->attempts[2]->number, running().second + 1);
  EXPECT_EQ(state_of("running"), "STARTING");
}

// The ranks ended while the controller was down.
TEST_P(RecordedStoreTest, VanishedAttemptIsRestarted) {
  reconciler->cordon("n2", false, "", [](const auto& done) { EXPECT_TRUE(done.ok()); });
  connect_all();
  advance(absl::Seconds(20));
  ASSERT_EQ(recorded("running")->attempts.size(), 3u);
  EXPECT_EQ(state_of("running"), "STARTING");
}

// Clients use old jobs like new ones, and a restart keeps both.
TEST_P(RecordedStoreTest, OldAndNewJobsWorkAlike) {
  start_running_attempt();
  connect_all();
  advance(absl::Seconds(2));
  ASSERT_TRUE(submit(spec("new", 1, 0)).ok());
  EXPECT_EQ(state("new"), "STARTING") << "n1 has a device that is free";
  const auto answered = [](const auto& done) { EXPECT_TRUE(done.ok()) << done.status(); };
  reconciler->cancel(recorded("queued")->record->uid, false, answered);
  reconciler->cancel(recorded("running")->record->uid, true, answered);
  reconciler->remove(recorded("failed")->record->uid, answered);
  settle();
  for (int opening = 0; opening < 2; ++opening) {
    EXPECT_EQ(state_of("queued"), "CANCELLED");
    EXPECT_EQ(state_of("running"), "CANCELLED");
    EXPECT_EQ(recorded("failed"), nullptr);
    EXPECT_EQ(state_of("done"), "SUCCEEDED");
    crash();
    connect_all();
    advance(absl::Seconds(2));
  }
  EXPECT_EQ(state("new"), "STARTING");
}

INSTANTIATE_TEST_SUITE_P(Recordings, RecordedStoreTest, ::testing::Values("recorded_0_1"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace titan::reconcile
