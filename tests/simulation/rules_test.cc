// Each rule is checked with a history that breaks it and with the same history without the breach: otherwise
// simulation_test would pass with a rule that detects nothing. planted_bugs_test does the same with whole histories.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {

// These clusters have no faults; a test only reports events to the rules.
class RulesTest : public ::testing::Test {
 protected:
  static Size small() {
    Size size;
    size.nodes = 3;
    size.devices = 2;
    size.one_bad_node = true;  // No job has a time limit.
    return size;
  }
  RulesTest() { wait(absl::Seconds(30)); }

  void wait(absl::Duration time) { cluster().timeline.run_until(now() + time); }
  absl::Duration now() { return cluster().timeline.now(); }
  Cluster& cluster() { return scenario_.cluster_; }

  static reconcile::JobView view(job::JobState state, int64_t revision = 5) {
    auto record = std::make_shared<job::JobRecord>();
    record->uid = "u1";
    record->state = state;
    record->spec.dump_folder = "/dump/j1";
    reconcile::JobView shown;
    shown.record = std::move(record);
    shown.revision = revision;
    return shown;
  }
  static reconcile::JobView placed(const std::string& uid, const std::string& node, int ranks, job::JobState state) {
    reconcile::JobView shown = view(state);
    auto record = std::make_shared<job::JobRecord>(*shown.record);
    record->uid = uid;
    shown.record = std::move(record);
    auto attempt = std::make_shared<job::AttemptRecord>();
    attempt->number = 1;
    attempt->placements = {{node, 0, ranks}};
    shown.attempts.push_back(std::move(attempt));
    return shown;
  }
  void see(const reconcile::JobView& shown) { scenario_.see(shown); }
  void line(const std::string& event, std::vector<std::pair<std::string, std::string>> fields) {
    scenario_.resting_ = true;  // Otherwise the line may cause a fault.
    scenario_.check_line({.event = event, .fields = std::move(fields)});
  }
  void expect_quiet() { EXPECT_EQ("", absl::StrJoin(cluster().violations, "\n")); }
  void expect_broken(const std::string& words) {
    const auto& all = cluster().violations;
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const auto& one) { return absl::StrContains(one, words); }))
        << words << ": not seen; " << absl::StrJoin(all, "\n");
    cluster().violations.clear();
  }
  // Runs the checks of every second.
  void look_each_second() { scenario_.every_second(); }
  void train(int64_t steps) {
    scenario_.submit(1);
    for (auto& [folder, plan] : cluster().ranks.plans) plan = {.steps = steps, .save_every = 1'000'000};
    wait(absl::Seconds(40));
    ASSERT_EQ(scenario_.shown_.begin()->second.state, "RUNNING");
  }
  void drain_without_orders(absl::Duration ago) {
    for (const auto& [node, machine] : cluster().machines) scenario_.drains_[node] = now() - ago;
  }
  Scenario::Shown& shown() { return scenario_.shown_.at("u1"); }
  void look_at_waits() { scenario_.check_waits(); }
  void place(const std::string& uid) { scenario_.placed_[uid] = now(); }
  void look_at_limits() { scenario_.check_limits(); }
  void look_at_answers() { scenario_.check_answers("n1"); }
  void look_at_the_end() { scenario_.check_all_over(); }

 private:
  Scenario scenario_{1, small()};
};

namespace {

using job::JobState;

TEST_F(RulesTest, EndsAreFinalAndWatchesNeverGoBack) {
  cluster().storage["/dump/j1"].committed = 8;
  cluster().ranks.plans["/dump/j1"].steps = 8;
  see(view(JobState::kQueued));
  see(view(JobState::kSucceeded, 6));
  expect_quiet();
  see(view(JobState::kRunning, 7));
  expect_broken("was SUCCEEDED and is RUNNING");
  see(view(JobState::kRunning, 3));
  expect_broken("goes back");
  reconcile::JobView gone = view(JobState::kRunning, 9);
  gone.deleted = true;
  see(gone);
  expect_broken("is deleted");
}

TEST_F(RulesTest, CheckpointsExistAndNeverGoBack) {
  cluster().storage["/dump/j1"].committed = 4;
  cluster().ranks.plans["/dump/j1"].steps = 8;
  reconcile::JobView shows = view(JobState::kRunning);
  shows.progress.committed_step = 4;
  see(shows);
  expect_quiet();
  shows.progress.committed_step = 3;
  see(shows);
  expect_broken("shows checkpoint 3 after 4");
  shows.progress.committed_step = 5;
  see(shows);
  expect_broken("shows checkpoint 5 of 4");
  see(view(JobState::kSucceeded));
  expect_broken("succeeded at step 4");
}

TEST_F(RulesTest, DevicesBelongToOneJob) {
  see(placed("u1", "n1", 1, JobState::kReserving));
  see(placed("u2", "n1", 1, JobState::kReserving));
  expect_quiet();
  see(placed("u3", "n1", 1, JobState::kReserving));
  expect_broken("u3 is placed on n1, where 3 ranks have devices");
}

TEST_F(RulesTest, RanksReportedAsEndedHaveRun) {
  reconcile::JobView one = placed("u1", "n1", 1, JobState::kRunning);
  auto attempt = std::make_shared<job::AttemptRecord>(*one.attempts[0]);
  attempt->exits.push_back({.rank = 0, .node = "n1"});
  one.attempts = {attempt};
  see(one);
  expect_broken("is reported to have ended on n1, and has never run");
}

TEST_F(RulesTest, WaitsAreExplainedAndBounded) {
  see(placed("u1", "n1", 1, JobState::kReserving));
  shown().has_reason = true;
  wait(absl::Seconds(100));
  look_at_waits();
  expect_quiet();
  wait(absl::Seconds(100));
  look_at_waits();
  expect_broken("u1 is RESERVING for 3m20s");
  see(view(JobState::kQueued));
  look_at_waits();
  expect_quiet();
  wait(absl::Seconds(15));
  look_at_waits();
  expect_broken("u1 is QUEUED for 15s");
}

TEST_F(RulesTest, LimitsEndJobs) {
  see(view(JobState::kRunning));
  shown().limit = absl::Seconds(20);
  place("u1");
  wait(absl::Seconds(21));
  look_at_limits();
  expect_quiet();
  wait(absl::Seconds(3));
  look_at_limits();
  expect_broken("beyond its limit of 20s");
  look_at_the_end();
  expect_broken("u1 is still RUNNING");
}

TEST_F(RulesTest, AttemptsLeaveADrainedNode) {
  train(10'000);
  look_each_second();
  drain_without_orders(absl::Seconds(5));
  wait(absl::Seconds(20));
  expect_quiet();
  wait(absl::Seconds(20));
  expect_broken("which is being drained for");
}

TEST_F(RulesTest, NothingHealthyIsAbandoned) {
  for (const char* event : {"StopTimedOut", "PrepareTimedOut"}) {
    wait(absl::Seconds(130));  // Longer than the time in which a fault may still have effects.
    line(event, {{"node", "n1"}, {"uid", "u9"}, {"attempt", "1"}});
    expect_broken("which has no trouble, is abandoned");
  }
  line("NodeCordoned", {{"node", "n1"}, {"message", "by a user"}});
  expect_quiet();
  line("NodeCordoned", {{"node", "n1"}, {"message", "by the controller"}});
  expect_broken("which had no trouble, is cordoned");
  line("AttemptStarted", {{"uid", "u9"}, {"attempt", "1"}});
  line("AttemptHung", {{"uid", "u9"}, {"attempt", "1"}});
  expect_broken("is reported as hung");
  look_at_answers();
  expect_broken("n1 is connected and receives nothing");
}

}  // namespace
}  // namespace titan::simulation
