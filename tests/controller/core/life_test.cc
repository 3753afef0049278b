// The life of a job, from submission to end.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::ElementsAre;

class LifeTest : public ::testing::Test, protected World {};

TEST_F(LifeTest, RunsToItsEnd) {
  add_node("n1");
  add_node("n2");
  ASSERT_TRUE(submit(spec("a")).ok());
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(job("a")->attempts[0]->placements, (std::vector<job::Placement>{{"n1", 0, 1}, {"n2", 1, 1}}));
  loaded("a", 0);
  train("a", 1);
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->progress.loss, 2.5);
  EXPECT_EQ(job("a")->progress.expert_max_over_mean, 1.5);
  train("a", 2);
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "FINISHED");
  EXPECT_EQ(job("a")->attempts[0]->last_step, 2);
  EXPECT_THAT(events("a"), ElementsAre("JobQueued", "AttemptPlaced", "AttemptLoaded", "AttemptRunning", "RankExited",
                                       "RankExited", "AttemptEnded", "JobSucceeded"));
  EXPECT_EQ(nodes.at("n1").attempts.size(), 0u) << "the node was ordered to forget the attempt";
}

// Ranks start once every node and the leader's port are ready; all nodes get the same address.
TEST_F(LifeTest, StartsWhenEveryNodeIsPrepared) {
  add_node("n1");
  FakeNode& second = add_node("n2");
  silent.insert("n2");
  ASSERT_TRUE(submit(spec("a")).ok());
  EXPECT_EQ(state("a"), "RESERVING");
  EXPECT_EQ(nodes.at("n1").count(v1::ControllerMessage::kStart), 0);
  silent.clear();
  settle();
  EXPECT_EQ(state("a"), "STARTING");
  const v1::Start& start = second.received.back().start();
  EXPECT_EQ(start.store_host(), "n1.local");
  EXPECT_EQ(start.store_port(), 4001);
}

// Nothing is shown, answered or sent before it is durable.
TEST_F(LifeTest, NothingHappensBeforeItIsDurable) {
  FakeNode& node = add_node("n1");
  node.session->inbox.clear();
  bool answered = false;
  reconciler->create(create_job(spec("a", 1, 0)), [&](const auto& result) { answered = result.ok(); });
  EXPECT_FALSE(answered);
  EXPECT_EQ(job("a"), nullptr);
  EXPECT_TRUE(node.session->inbox.empty());
  settle();
  EXPECT_TRUE(answered);
  EXPECT_EQ(state("a"), "STARTING");
}

TEST_F(LifeTest, WaitsWithAReason) {
  ASSERT_TRUE(submit(spec("a")).ok());
  EXPECT_EQ(state("a"), "QUEUED");
  EXPECT_EQ(job("a")->pending_reason, "NO_NODES");
  add_node("n1");
  EXPECT_EQ(job("a")->pending_reason, "RANKS_PER_NODE_UNSATISFIABLE");
  add_node("n2");
  EXPECT_EQ(job("a")->pending_reason, "");
  EXPECT_EQ(state("a"), "STARTING");
}

TEST_F(LifeTest, NextJobGetsTheDevicesOfTheFinishedOne) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  ASSERT_TRUE(submit(spec("b", 1, 0)).ok());
  EXPECT_EQ(job("b")->pending_reason, "INSUFFICIENT_DEVICES");
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_EQ(state("b"), "STARTING");
}

TEST_F(LifeTest, CancelSavesFirst) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  stops_at_once = false;
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_EQ(state("a"), "STOPPING");
  EXPECT_TRUE(node.received.back().stop().save());
  EXPECT_EQ(node.received.back().stop().grace_milliseconds(), 30'000);
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());  // The user cancels immediately.
  EXPECT_EQ(node.received.back().stop().grace_milliseconds(), 0);
  finish_all("a", -1, 9);
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(count_events("a", "CancelRequested"), 1);
  EXPECT_TRUE(cancel("a").ok()) << "cancelling is idempotent";
}

TEST_F(LifeTest, CancelInTheQueueIsImmediate) {
  ASSERT_TRUE(submit(spec("a")).ok());
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_EQ(state("a"), "CANCELLED");
  add_node("n1", 4);
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_TRUE(submit(spec("b", 1, 0)).ok());
}

// Cancelling a finished job fails, and the error names its state.
TEST_F(LifeTest, CancelOfAFinishedJobFails) {
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  finish_all("a");
  EXPECT_EQ(cancel("a").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(LifeTest, CheckpointNow) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  absl::Status status;
  const auto send_request = [&] {
    reconciler->checkpoint(job("a")->record->uid, [&](const auto& result) { status = result.status(); });
    settle();
  };
  send_request();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << "no step yet";
  train("a", 1);
  send_request();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(state("a"), "CHECKPOINTING");
  EXPECT_EQ(node.count(v1::ControllerMessage::kCheckpoint), 1);
  event(node, key("a"), 0, R"({"kind":"checkpoint_committed","step":1,"full":true,"seconds":0.1})");
  settle();
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->progress.committed_step, 1);
}

// Events record who requested a trace and that it was recorded; the job's state stays the same.
TEST_F(LifeTest, TracesAreRecordedAsEvents) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  absl::StatusOr<JobViewPtr> answer = absl::InternalError("never answered");
  const auto send_request = [&] {
    reconciler->profile(job("a")->record->uid, {0}, 3, [&](const auto& result) { answer = result; });
    settle();
  };
  send_request();
  EXPECT_EQ(rpc::reason(answer.status()), "JOB_NOT_RUNNING") << "no step yet";
  train("a", 1);
  send_request();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ((*answer)->attempts.back()->number, 1);
  EXPECT_EQ(state("a"), "RUNNING");
  event(node, key("a"), 0, R"({"kind":"trace","first_step":4,"last_step":6,"bytes":3251000})");
  settle();
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(count_events("a", "TraceRequested"), 1);
  EXPECT_EQ(count_events("a", "TraceRecorded"), 1);
  finish_all("a");
  send_request();
  EXPECT_EQ(rpc::reason(answer.status()), "JOB_OVER");
}

// A job shows that its newest save failed, until one succeeds.
TEST_F(LifeTest, AFailedSaveIsShown) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  event(node, key("a"), 0, R"({"kind":"checkpoint_failed","step":4,"reason":"No space left on device"})");
  settle();
  EXPECT_EQ(job("a")->progress.failed_save, "step 4: No space left on device");
  event(node, key("a"), 0, R"({"kind":"checkpoint_committed","step":5,"full":true,"seconds":0.1})");
  settle();
  EXPECT_EQ(job("a")->progress.failed_save, "");
  EXPECT_EQ(job("a")->progress.committed_step, 5);
}

TEST_F(LifeTest, AJobThatNeverSavesRefusesACheckpoint) {
  saves = false;
  add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  train("a", 1);
  absl::Status status;
  reconciler->checkpoint(job("a")->record->uid, [&](const auto& result) { status = result.status(); });
  settle();
  EXPECT_EQ(rpc::reason(status), "CHECKPOINTS_DISABLED");
  EXPECT_EQ(state("a"), "RUNNING");
}

// The number of threads is computed once and stored with the job, because results depend on it bit for bit.
TEST_F(LifeTest, ThreadsAreResolvedOnce) {
  add_node("n1", 2);
  ASSERT_TRUE(submit(spec("a", 2, 2)).ok());
  EXPECT_EQ(job("a")->record->threads_per_rank, 2);
}

// Events are recorded exactly once, even if a worker repeats them.
TEST_F(LifeTest, EventsAreTakenOnceAndAcknowledgedWhenDurable) {
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec("a", 1, 0)).ok());
  const FakeNode::Key k = key("a");
  const std::string warning = R"({"kind":"warning","message":"slow disk"})";
  send_events(node, k, 0, 1, warning);
  EXPECT_EQ(node.count(v1::ControllerMessage::kEventsAck), 0);
  settle();
  EXPECT_EQ(node.count(v1::ControllerMessage::kEventsAck), 1);
  send_events(node, k, 0, 1, warning);
  settle();
  EXPECT_EQ(count_events("a", "RankWarning"), 1);
  EXPECT_EQ(node.received.back().events_ack().sequence(), 1);
  crash();
  connect(node);
  send_events(node, k, 0, 1, warning);
  send_events(node, k, 0, 2, warning);
  settle();
  EXPECT_EQ(count_events("a", "RankWarning"), 2);
}

// The controller's log has its decisions and their reasons, but not each step.
TEST(JournalTest, HasALineForEachDecisionAndNoneForEachStep) {
  struct : World {
    void run() {
      add_node("n1");
      add_node("n2");
      ASSERT_TRUE(submit(spec("a")).ok());
      loaded("a", 0);
      for (int64_t step = 1; step <= 50; ++step) {
        train("a", step);
        event(nodes.at("n1"), key("a"), 0, R"({"kind":"checkpoint_committed","step":1,"full":true,"seconds":0.1})");
        advance(absl::Seconds(1));
      }
      exit_rank(nodes.at("n2"), key("a"), 1, -1, 9);
      settle();
      ASSERT_TRUE(cancel("a").ok());
      std::vector<std::string> found;
      for (const std::string& line : journal->lines) found.push_back(line.substr(6, line.find(' ') - 6));
      EXPECT_EQ(found, (std::vector<std::string>{"NodeRegistered", "NodeRegistered", "JobQueued", "AttemptPlaced",
                                                 "AttemptStarted", "AttemptRunning", "AttemptEnded", "RestartDecided",
                                                 "AttemptPlaced", "AttemptStarted", "CancelRequested", "AttemptEnded",
                                                 "JobCancelled"}));
      EXPECT_EQ(
          journal->lines[6],
          "event=AttemptEnded job=projects/default/jobs/a uid=id1 attempt=1 message=\"RANK_KILLED: rank 1 on n2 was "
          "killed by signal 9\"");
      EXPECT_EQ(
          journal->lines[7],
          "event=RestartDecided job=projects/default/jobs/a uid=id1 delay_s=0 without_progress=1 cause=RANK_KILLED "
          "message=\"rank 1 on n2 was killed by signal 9\"");
    }
  } world;
  world.run();
}

// Steps are reported from time to time; the job shows the last finished one.
class LastStepTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    add_node("n1");
    ASSERT_TRUE(submit(spec("a", 1)).ok());
    loaded("a", 0);
    train("a", 10);
  }
  void send_event(const std::string& json) {
    event(nodes.at("n1"), key("a"), 0, json);
    settle();
  }
};

TEST_F(LastStepTest, BeatsUpdateTheStep) {
  nodes.at("n1").attempts.at(key("a")).step = 11;
  advance(absl::Seconds(1));
  EXPECT_EQ(job("a")->progress.step, 11);
  train("a", 10);  // An older row that arrives late does not lower the step.
  EXPECT_EQ(job("a")->progress.step, 11);
}

TEST_F(LastStepTest, FinishedEventSetsTheLastStep) {
  send_event(R"({"kind":"finished","step":12})");
  finish_all("a");
  EXPECT_EQ(state("a"), "SUCCEEDED");
  EXPECT_EQ(job("a")->progress.step, 12);
  EXPECT_EQ(job("a")->attempts[0]->last_step, 12);
  EXPECT_EQ(job("a")->record->history.best_step, 12);
  crash();
  EXPECT_EQ(job("a")->progress.step, 12);
}

TEST_F(LastStepTest, ACancelledJobShowsTheStepThatItSaved) {
  stops_at_once = false;
  ASSERT_TRUE(cancel("a").ok());
  send_event(R"({"kind":"checkpoint_committed","step":12,"full":true,"seconds":0.1})");
  EXPECT_EQ(job("a")->progress.step, 12);
  send_event(R"({"kind":"stopped","step":12})");
  finish_all("a", 16);
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(job("a")->progress.step, 12);
}

TEST_F(LastStepTest, ReplayedStepsAreShown) {
  exit_rank(nodes.at("n1"), key("a"), 0, -1, 9);
  settle();
  EXPECT_EQ(job("a")->progress.step, 10);
  loaded("a", 5);
  train("a", 6);
  EXPECT_EQ(job("a")->progress.step, 6);
  crash();
  connect(nodes.at("n1"));
  EXPECT_EQ(job("a")->progress.step, 6);
}

}  // namespace
}  // namespace titan::reconcile
