// A job ends at its time limit, whatever happens before, and may be backfilled where jobs without a limit may not.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;

class TimeLimitTest : public World, public ::testing::Test {
 protected:
  job::SchedulingSpec limited(const std::string& id, int64_t seconds, int ranks = 1) {
    job::SchedulingSpec wanted = spec(id, ranks, 1);
    wanted.time_limit_seconds = seconds;
    return wanted;
  }
  // Runs "a" with this limit until it has a checkpoint of step 3.
  void run_with_limit(int64_t seconds) {
    add_node("n1");
    ASSERT_TRUE(submit(limited("a", seconds)).ok());
    loaded("a", 0);
    train("a", 3);
    event(nodes.at("n1"), key("a"), 0, R"({"kind":"checkpoint_committed","step":3,"full":true,"seconds":1})");
    settle();
    ASSERT_EQ(state("a"), "RUNNING");
  }
  // Makes "wide" wait for both nodes, one of which "first" uses for at most 1000 s.
  void wait_for_the_first() {
    add_node("n1");
    ASSERT_TRUE(submit(limited("first", 1000)).ok());
    add_node("n2");
    ASSERT_TRUE(submit(spec("wide", 2, 1)).ok());
  }
  void expect_out_of_time() {
    EXPECT_EQ(state("a"), "FAILED");
    EXPECT_EQ(job("a")->record->failure_reason, "TIME_LIMIT");
    EXPECT_THAT(job("a")->record->failure_message, HasSubstr("newest checkpoint is of step 3"));
    EXPECT_EQ(count_events("a", "TimeLimitReached"), 1);
    EXPECT_EQ(reconciler->node("n1")->devices_used, 0);
  }
};

TEST_F(TimeLimitTest, JobSavesAndEndsAtItsTimeLimit) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(60));
  advance(absl::Seconds(59));
  EXPECT_EQ(state("a"), "RUNNING");
  advance(absl::Seconds(1));
  expect_out_of_time();
  EXPECT_EQ(job("a")->attempts.back()->end_cause, "TIME_LIMIT");
  EXPECT_THAT(job("a")->attempts.back()->end_message, HasSubstr("the ranks saved first"));
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kStop), 1);
}

TEST_F(TimeLimitTest, RestartedControllerCountsElapsedTime) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(60));
  advance(absl::Seconds(40));
  crash();
  connect_all();
  clock.advance(absl::Seconds(10));
  crash();
  connect_all();
  advance(absl::Seconds(9));
  EXPECT_EQ(state("a"), "RUNNING");
  advance(absl::Seconds(1));
  expect_out_of_time();
}

// The stop was recorded, but no node had got it.
TEST_F(TimeLimitTest, RecordedStopSurvivesTheController) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(60));
  hung = {"n1"};
  advance(absl::Seconds(60));
  EXPECT_EQ(state("a"), "STOPPING");
  crash();
  hung.clear();
  connect_all();
  expect_out_of_time();
}

TEST_F(TimeLimitTest, AttemptsShareOneLimit) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(60));
  advance(absl::Seconds(50));
  exit_rank(nodes.at("n1"), key("a"), 0, 1, 0);
  settle();
  loaded("a", 3);
  train("a", 4);
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  advance(absl::Seconds(10));
  expect_out_of_time();
}

TEST_F(TimeLimitTest, RecoveringJobEndsAtItsTimeLimit) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(120));
  destroy(nodes.at("n1"));
  advance(absl::Seconds(119));
  EXPECT_EQ(state("a"), "RECOVERING");
  advance(absl::Seconds(1));
  EXPECT_EQ(state("a"), "STOPPING") << "its rank may still train on the unreachable node";
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
  EXPECT_EQ(reconciler->node("n1")->left.size(), 1u);
  advance(absl::Seconds(600));
  expect_out_of_time();
  EXPECT_TRUE(submit(limited("b", 60)).ok());
}

TEST_F(TimeLimitTest, ClusterDefaultAppliesToJobsWithoutALimit) {
  default_time_limit_seconds = 90;
  crash();
  add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 1, 1)).ok());
  ASSERT_TRUE(submit(limited("own", 500)).ok());
  EXPECT_EQ(job("a")->record->spec.time_limit_seconds, 90);
  EXPECT_EQ(job("own")->record->spec.time_limit_seconds, 500);
  train("a", 1);
  advance(absl::Seconds(91));
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "TIME_LIMIT");
  default_time_limit_seconds = 10;
  crash();
  EXPECT_EQ(job("own")->record->spec.time_limit_seconds, 500) << "the limit of an accepted job stays";
}

// Running jobs have no limit, but their pace shows when they will end.
TEST_F(TimeLimitTest, ShortJobIsBackfilledByThePaceOfRunningJobs) {
  add_node("n1");
  job::SchedulingSpec endless = spec("first", 1, 1);
  endless.total_steps = 1000;
  ASSERT_TRUE(submit(endless).ok());
  add_node("n2");
  ASSERT_TRUE(submit(spec("wide", 2, 1)).ok());
  ASSERT_TRUE(submit(limited("short", 100)).ok());
  ASSERT_TRUE(submit(limited("long", 2000)).ok());
  ASSERT_TRUE(submit(spec("endless", 1, 1)).ok());
  loaded("first", 0);
  advance(absl::Seconds(2));
  EXPECT_EQ(state("short"), "QUEUED") << "the pace of the running job is not known yet";
  for (int step = 1; step <= 40; ++step) {  // A step a second: the job ends 960 s later.
    train("first", step);
    advance(absl::Seconds(1));
  }
  EXPECT_EQ(state("short"), "STARTING");
  EXPECT_EQ(state("long"), "QUEUED");
  EXPECT_EQ(state("endless"), "QUEUED");
  finish_all("short");
  finish_all("first");
  advance(absl::Seconds(1));
  EXPECT_EQ(state("wide"), "STARTING");
}

// The limit does not run while the job waits for its first devices.
TEST_F(TimeLimitTest, TheLimitBeginsWithTheFirstPlacement) {
  ASSERT_TRUE(submit(limited("a", 60)).ok());
  advance(absl::Seconds(100));
  EXPECT_EQ(state("a"), "QUEUED");
  EXPECT_EQ(job("a")->record->placed_time_ns, 0);
  add_node("n1");
  EXPECT_EQ(job("a")->record->placed_time_ns, absl::ToUnixNanos(clock.now()));
  advance(absl::Seconds(59));
  EXPECT_EQ(state("a"), "STARTING");
}

TEST_F(TimeLimitTest, CancelDuringTheStopCountsAsACancel) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(60));
  stops_at_once = false;
  advance(absl::Seconds(60));
  ASSERT_EQ(state("a"), "STOPPING");
  EXPECT_TRUE(cancel("a").ok());
  finish_all("a", 16);
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(job("a")->record->failure_reason, "");
}

// The last step of the job was under way when the job was ordered to stop.
TEST_F(TimeLimitTest, JobThatFinishesDuringTheStopSucceeds) {
  ASSERT_NO_FATAL_FAILURE(run_with_limit(60));
  stops_at_once = false;
  advance(absl::Seconds(60));
  finish_all("a", 0);
  EXPECT_EQ(state("a"), "SUCCEEDED");
}

// "wide" needs both nodes, one of which is used until a known time: a job that ends by then may use the other one.
TEST_F(TimeLimitTest, OnlyShortJobsWithALimitAreBackfilled) {
  ASSERT_NO_FATAL_FAILURE(wait_for_the_first());
  advance(absl::Seconds(1));
  ASSERT_EQ(state("wide"), "QUEUED");
  ASSERT_TRUE(submit(spec("endless", 1, 1)).ok());
  ASSERT_TRUE(submit(limited("long", 1001)).ok());
  ASSERT_TRUE(submit(limited("short", 500)).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("endless"), "QUEUED");
  EXPECT_EQ(state("long"), "QUEUED");
  EXPECT_EQ(state("short"), "STARTING");
  finish_all("short");
  finish_all("first");
  advance(absl::Seconds(1));
  EXPECT_EQ(state("wide"), "STARTING");
}

// Elapsed time counts: a restarted controller predicts the same end as its predecessor.
TEST_F(TimeLimitTest, RestartedControllerBackfillsByTheRemainingTime) {
  ASSERT_NO_FATAL_FAILURE(wait_for_the_first());
  advance(absl::Seconds(500));
  crash();
  connect_all();
  advance(absl::Seconds(1));
  ASSERT_TRUE(submit(limited("too-long", 600)).ok());
  ASSERT_TRUE(submit(limited("short", 400)).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("too-long"), "QUEUED");
  EXPECT_EQ(state("short"), "STARTING");
}

}  // namespace
}  // namespace titan::reconcile
