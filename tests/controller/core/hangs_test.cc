// Ranks that live but do nothing, and a controller that was itself paused for a while.

#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

class HangsTest : public ::testing::Test, protected World {
 protected:
  void SetUp() override {
    add_node("n1");
    add_node("n2");
    job::SchedulingSpec wanted = spec("a");
    wanted.restart.init_timeout_seconds = 10;
    wanted.restart.train_timeout_seconds = 4;
    ASSERT_TRUE(submit(wanted).ok());
  }
  void run() {
    loaded("a", 0);
    train("a", 1);
    advance(absl::Seconds(1));
  }
  void enter(const std::string& phase) {
    for (auto& [name, node] : nodes) node.attempts.at(key("a")).rank_phase = phase;
  }
};

TEST_F(HangsTest, HungAttemptIsStoppedAndRestarted) {
  run();
  enter("forward");
  advance(absl::Seconds(10));
  EXPECT_EQ(job("a")->attempts.size(), 1u) << "less than 3 times the longest collective have passed";
  advance(absl::Seconds(4));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "HANG");
  EXPECT_THAT(job("a")->attempts[0]->end_message, ::testing::HasSubstr("rank 0 on n1 in forward, rank 1 on n2"));
  EXPECT_EQ(count_events("a", "AttemptHung"), 1);
  EXPECT_EQ(state("a"), "STARTING");
}

TEST_F(HangsTest, HangCauseSurvivesACrash) {
  run();
  enter("forward");
  stops_at_once = false;
  advance(absl::Seconds(14));
  ASSERT_EQ(state("a"), "RECOVERING");
  crash();
  stops_at_once = true;
  connect_all();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "HANG");
  EXPECT_THAT(job("a")->attempts[0]->end_message, ::testing::HasSubstr("rank 0 on n1 in forward"));
}

// The peer's own timeout ends the attempt, and the controller kills the rank for which it waited. That kill is not the
// cause.
TEST_F(HangsTest, AwaitedRankIsNamed) {
  run();
  enter("forward");
  nodes.at("n2").attempts.at(key("a")).behind[1] = 1;  // It has not joined the collective in which rank 0 waits.
  advance(absl::Seconds(4));
  exit_rank(nodes.at("n1"), key("a"), 0, rank_protocol::kExitPeerLost, 0);
  settle();
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "HANG");
  EXPECT_THAT(job("a")->attempts[0]->end_message,
              ::testing::StartsWith("rank 1 on n2 in forward made no progress for 4 s; Titan ended it. rank 0 on n1"));
  EXPECT_EQ(state("a"), "STARTING");
}

// The connection between two ranks broke while both made progress: nobody hung, and the controller's own kill is not
// the cause.
TEST_F(HangsTest, LostPeerWithProgressIsNotAHang) {
  run();
  for (auto& [name, node] : nodes) ++node.attempts.at(key("a")).counter;
  advance(absl::Seconds(1));
  exit_rank(nodes.at("n1"), key("a"), 0, rank_protocol::kExitPeerLost, 0);
  settle();
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "RANK_FAILED");
  EXPECT_THAT(job("a")->attempts[0]->end_message, ::testing::StartsWith("rank 0 on n1 exited with code 12"));
}

TEST_F(HangsTest, ProgressOfOneRankIsEnough) {
  run();
  for (int i = 0; i < 30; ++i) {
    ++nodes.at("n2").attempts.at(key("a")).counter;
    advance(absl::Seconds(1));
  }
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

TEST_F(HangsTest, TheStartMayTakeLonger) {
  advance(absl::Seconds(28));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  advance(absl::Seconds(5));
  ASSERT_EQ(job("a")->attempts.size(), 2u);
  EXPECT_EQ(job("a")->attempts[0]->end_cause, "HANG");
}

TEST_F(HangsTest, ACheckpointOrValidationMayTakeLong) {
  for (const char* phase : {"checkpoint", "validate"}) {
    run();
    enter(phase);
    advance(absl::Seconds(90));
    EXPECT_EQ(job("a")->attempts.size(), 1u) << phase;
  }
}

// A slow step raises the timeout so that slow steps do not look like hangs, but a longer silence is still a hang.
TEST_F(HangsTest, EarlierSlowStepRaisesTheTimeout) {
  run();
  enter("forward");
  advance(absl::Seconds(10));
  train("a", 2);
  advance(absl::Seconds(38));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
  advance(absl::Seconds(5));
  EXPECT_EQ(job("a")->attempts.size(), 2u) << "ten times the longest collective have passed";
}

TEST_F(HangsTest, LongLoadOrSaveDoesNotDelayDetection) {
  advance(absl::Seconds(25));  // The job loads a checkpoint.
  run();
  enter("checkpoint");
  advance(absl::Seconds(60));
  train("a", 2);
  enter("forward");
  advance(absl::Seconds(20));
  EXPECT_EQ(job("a")->attempts.size(), 2u);
}

// Nodes report prepared attempts too, but the time that these wait does not count as a hang of the ranks.
TEST_F(HangsTest, LongPreparationIsNotAHang) {
  finish_all("a");
  hung = {"n2"};
  job::SchedulingSpec wanted = spec("b");
  wanted.restart.train_timeout_seconds = 4;
  ASSERT_TRUE(submit(wanted).ok());
  const FakeNode::Key attempt = key("b");
  FakeNode& first = nodes.at("n1");
  first.attempts.at(attempt).phase = v1::AttemptReport::STARTED;  // Makes the fake node list the attempt in its beats.
  advance(absl::Seconds(60));
  first.attempts.at(attempt).phase = v1::AttemptReport::PREPARED;
  hung.clear();
  FakeNode& second = nodes.at("n2");
  second.attempts[attempt].ranks = {1};
  second.highest[attempt.first] = attempt.second;
  deliver(second, report(attempt, second.attempts.at(attempt)));
  settle();
  EXPECT_EQ(state("b"), "STARTING");
  loaded("b", 0);
  event(first, attempt, 0, R"({"kind":"step","step":1,"metrics":{}})");  // Arrives before the next beat.
  settle();
  reconciler->tick();
  settle();
  EXPECT_EQ(state("b"), "RUNNING");
  EXPECT_EQ(job("b")->attempts.size(), 1u);
}

TEST_F(HangsTest, UnreachableRanksAreNotHung) {
  run();
  const FakeNode::Key first = key("a");
  disconnect(nodes.at("n1"));
  disconnect(nodes.at("n2"));
  advance(absl::Seconds(40));
  connect(nodes.at("n1"));
  connect(nodes.at("n2"));
  advance(absl::Seconds(2));
  EXPECT_EQ(key("a"), first);
  EXPECT_EQ(state("a"), "RUNNING");
}

TEST_F(HangsTest, PausedControllerBlamesNoNodeOrRank) {
  run();
  clock.advance(absl::Seconds(1000));
  reconciler->tick();
  settle();
  EXPECT_EQ(reconciler->node("n1")->node.state, core::NodeState::kReady);
  EXPECT_EQ(job("a")->pending_reason, "");
  advance(absl::Seconds(2));
  EXPECT_EQ(state("a"), "RUNNING");
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

// A prepared attempt may end by itself, for example if its shim is killed: the other node must not wait forever.
TEST(PreparedTest, AttemptThatEndsBeforeItsStartIsRetried) {
  struct : World {
    void run() {
      refuses = {};
      add_node("n1");
      add_node("n2");
      silent = {"n1"};  // It has not prepared yet when the other node's shim ends.
      ASSERT_TRUE(submit(spec("a")).ok());
      const FakeNode::Key first = key("a");
      FakeNode::Attempt& second_part = nodes.at("n2").attempts.at(first);
      second_part.phase = v1::AttemptReport::ENDED;
      deliver(nodes.at("n2"), report(first, second_part));
      silent = {};
      settle();
      ASSERT_EQ(job("a")->attempts.size(), 2u);
      EXPECT_EQ(job("a")->attempts[0]->end_cause, "LAUNCH_FAILED");
      EXPECT_EQ(state("a"), "STARTING");
    }
  } world;
  world.run();
}

}  // namespace
}  // namespace titan::reconcile
