// A job is not finished, and a node not empty, while ranks may still train on a silent node.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LeftBehindTest : public World, public ::testing::Test {
 protected:
  // Runs one rank per node, on n1 alone or on both nodes.
  void run_on(int count, const std::string& id = "a") {
    for (int i = 1; i <= count; ++i) add_node(absl::StrCat("n", i));
    job::SchedulingSpec wanted = spec(id, count, 1);
    wanted.restart.orphan_timeout_seconds = 120;
    ASSERT_TRUE(submit(wanted).ok());
    loaded(id, 0);
    train(id, 1);
    ASSERT_EQ(state(id), "RUNNING");
  }
  absl::Status delete_node(const std::string& node, bool force = false) {
    absl::Status status = absl::InternalError("never answered");
    reconciler->delete_node(
        node, [&](const absl::StatusOr<NodeView>& result) { status = result.status(); }, "user:alice", force);
    settle();
    return status;
  }
  size_t left_on(const std::string& node) { return reconciler->node(node)->left.size(); }
  bool runs(const std::string& node) { return nodes.at(node).attempts.begin()->second.gone.empty(); }
};

// The job, its node and jobs that want its folder all show the wait.
TEST_F(LeftBehindTest, ACancelledJobIsStoppingWhileItsNodeIsSilent) {
  run_on(1);
  silent = {"n1"};
  advance(absl::Seconds(7));
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(30));
  ASSERT_TRUE(runs("n1")) << "the fixture: its ranks train all the time";
  EXPECT_EQ(state("a"), "STOPPING");
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
  EXPECT_THAT(job("a")->pending_message,
              AllOf(HasSubstr("1 rank on n1 may still run"), HasSubstr("node delete --force")));
  EXPECT_EQ(left_on("n1"), 1u);
  disconnect(nodes.at("n1"));
  const absl::Status in_use = delete_node("n1");
  EXPECT_EQ(rpc::reason(in_use), "NODE_IN_USE");
  EXPECT_THAT(in_use.message(),
              AllOf(HasSubstr("1 rank of projects/default/jobs/a (attempt 1)"), HasSubstr("--force")));
  job::SchedulingSpec next = spec("b", 1, 1);
  next.dump_folder = "/dump/a";
  const absl::Status refused = submit(next).status();
  EXPECT_EQ(rpc::reason(refused), "DUMP_FOLDER_IN_USE");
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("n1"), HasSubstr("may still run")));
}

// The wait is bounded: after the orphan timeout, ranks without a controller have saved and exited, or were killed.
TEST_F(LeftBehindTest, TheWaitEndsWhenOrphansMustHaveEnded) {
  run_on(1);
  silent = {"n1"};
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(120 + 60));
  EXPECT_EQ(state("a"), "STOPPING");
  advance(absl::Seconds(40));
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(left_on("n1"), 0u);
  job::SchedulingSpec next = spec("b", 1, 1);
  next.dump_folder = "/dump/a";
  EXPECT_TRUE(submit(next).ok());
  disconnect(nodes.at("n1"));
  EXPECT_TRUE(delete_node("n1").ok());
}

// An attempt that was never started does not train, so nobody waits for it. Its node still gets the stop.
TEST_F(LeftBehindTest, APreparedAttemptIsNotWaitedFor) {
  add_node("n1");
  add_node("n2");
  hung = {"n2"};
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  ASSERT_EQ(state("a"), "RESERVING");
  silent = {"n1"};
  advance(absl::Seconds(2));
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  silent = {"n1", "n2"};
  advance(absl::Seconds(20));
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(left_on("n1"), 0u);
  disconnect(nodes.at("n1"));
  EXPECT_TRUE(delete_node("n1").ok());
}

// A restarted controller waits as well, and not longer than before.
TEST_F(LeftBehindTest, RestartedControllerContinuesWaiting) {
  run_on(1);
  silent = {"n1"};
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(100));
  ASSERT_EQ(state("a"), "STOPPING");
  crash();
  const NodeView before_its_report = *reconciler->node("n1");
  EXPECT_EQ(before_its_report.node.state, core::NodeState::kReconciling);
  EXPECT_EQ(before_its_report.devices_used, 1) << "it does not look idle";
  EXPECT_THAT(before_its_report.jobs, ::testing::ElementsAre("projects/default/jobs/a"));
  advance(absl::Seconds(20));
  EXPECT_EQ(state("a"), "STOPPING");
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
  EXPECT_EQ(rpc::reason(delete_node("n1")), "NODE_IN_USE");
  advance(absl::Seconds(100));
  EXPECT_EQ(state("a"), "CANCELLED");
}

// Once the node reports again, in the same or a new session, its ranks get the stop, and the job ends when they are
// gone.
TEST_F(LeftBehindTest, ReturningNodeEndsTheRanksAndTheJob) {
  for (const bool same_session : {true, false}) {
    const std::string id = same_session ? "a" : "b";
    if (same_session) {
      run_on(1);
    } else {
      silent.clear();
      ASSERT_TRUE(submit(spec(id, 1, 1)).ok());
      train(id, 1);
    }
    silent = {"n1"};
    ASSERT_TRUE(cancel(id, /*now=*/true).ok());
    advance(absl::Seconds(20));
    ASSERT_EQ(state(id), "STOPPING");
    silent.clear();
    if (!same_session) connect(nodes.at("n1"));
    advance(absl::Seconds(2));
    EXPECT_EQ(state(id), "CANCELLED");
    EXPECT_EQ(left_on("n1"), 0u);
    for (const auto& [key, attempt] : nodes.at("n1").attempts) EXPECT_EQ(attempt.phase, v1::AttemptReport::ENDED);
  }
}

// A cancel that saves first does so even if the node gets it late.
TEST_F(LeftBehindTest, ALateNodeSavesFirst) {
  run_on(1);
  FakeNode& node = nodes.at("n1");
  disconnect(node);
  ASSERT_TRUE(cancel("a").ok());
  advance(absl::Seconds(80));
  ASSERT_EQ(state("a"), "STOPPING");
  connect(node);
  const auto stop = std::find_if(node.received.rbegin(), node.received.rend(),
                                 [](const v1::ControllerMessage& message) { return message.has_stop(); });
  ASSERT_NE(stop, node.received.rend());
  EXPECT_TRUE(stop->stop().save());
  EXPECT_GT(stop->stop().grace_milliseconds(), 0);
  advance(absl::Seconds(1));
  EXPECT_EQ(state("a"), "CANCELLED");
}

TEST_F(LeftBehindTest, ForcedNodeDeletionEndsTheWait) {
  run_on(1);
  silent = {"n1"};
  advance(absl::Seconds(7));
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(10));
  EXPECT_EQ(rpc::reason(delete_node("n1", /*force=*/true)), "NODE_NOT_LOST") << "its session is open";
  disconnect(nodes.at("n1"));
  ASSERT_TRUE(delete_node("n1", /*force=*/true).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("a"), "CANCELLED");
  crash();
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_TRUE(absl::IsNotFound(reconciler->node("n1").status()));
}

// A forced deletion works even while the controller still waits for the node and has stopped nothing.
TEST_F(LeftBehindTest, ForcedNodeDeletionMovesTheJobElsewhere) {
  run_on(1);
  disconnect(nodes.at("n1"));
  advance(absl::Seconds(10));
  ASSERT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(rpc::reason(delete_node("n1")), "NODE_IN_USE");
  ASSERT_TRUE(delete_node("n1", /*force=*/true).ok());
  add_node("n2");
  advance(absl::Seconds(3));
  EXPECT_EQ(job("a")->record->attempts, 2);
  EXPECT_EQ(job("a")->attempts.back()->placements[0].node, "n2");
}

// The attempt had failed with its node and the job waited for another one: its ranks may still run.
TEST_F(LeftBehindTest, ACancelBetweenAttemptsWaitsForTheLastOne) {
  run_on(1);
  silent = {"n1"};
  advance(absl::Seconds(75));
  ASSERT_EQ(state("a"), "RECOVERING");
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("a"), "STOPPING");
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
  ASSERT_TRUE(cancel("a", /*now=*/true).ok()) << "once more";
  silent.clear();
  advance(absl::Seconds(2));
  EXPECT_EQ(state("a"), "CANCELLED");
}

// Ranks of an older attempt are fenced off and do not delay the job's end, but their node is not empty.
TEST_F(LeftBehindTest, OlderAttemptHoldsOnlyItsNode) {
  run_on(1);
  disconnect(nodes.at("n1"));
  add_node("n2");
  advance(absl::Seconds(75));
  train("a", 2);
  ASSERT_EQ(job("a")->attempts.back()->placements[0].node, "n2");
  ASSERT_TRUE(cancel("a", /*now=*/true).ok());
  advance(absl::Seconds(1));
  EXPECT_EQ(state("a"), "CANCELLED");
  EXPECT_EQ(left_on("n1"), 1u);
  EXPECT_EQ(rpc::reason(delete_node("n1")), "NODE_IN_USE");
}

// A job that fails waits for its ranks just like a cancelled job.
TEST_F(LeftBehindTest, FailingJobWaitsForItsRanksToo) {
  add_node("n1");
  job::SchedulingSpec wanted = spec("a", 1, 1);
  wanted.time_limit_seconds = 20;
  ASSERT_TRUE(submit(wanted).ok());
  train("a", 1);
  silent = {"n1"};
  advance(absl::Seconds(95));
  EXPECT_EQ(state("a"), "STOPPING");
  EXPECT_EQ(job("a")->pending_reason, "NODE_UNREACHABLE");
  silent.clear();
  advance(absl::Seconds(2));
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "TIME_LIMIT");
}

}  // namespace
}  // namespace titan::reconcile
