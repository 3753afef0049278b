// Diagnosis requests for a hung rank are answered in time, whatever the shim does, and before the attempt is forgotten.

#include <gtest/gtest.h>

#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

v1::ControllerMessage make_diagnose(int attempt, bool stacks, int64_t milliseconds = 4000) {
  v1::ControllerMessage message;
  v1::Diagnose& order = *message.mutable_diagnose();
  order.mutable_id()->set_job_uid("u1");
  order.mutable_id()->set_number(attempt);
  order.set_stacks(stacks);
  order.set_deadline_milliseconds(milliseconds);
  return message;
}

bool requested_stacks(NodeWorld& world) {
  return std::any_of(world.shim(1).got.begin(), world.shim(1).got.end(),
                     [](const ShimCommand& it) { return it.kind == ShimCommand::Kind::kStacks; });
}

NodeWorld running(int ranks = 2) {
  NodeWorld world;
  world.connect();
  world.launch(1, ranks);
  return world;
}

TEST(DiagnosisTest, StacksAreTakenBeforeTheAnswer) {
  NodeWorld world = running();
  EXPECT_TRUE(world.registered().diagnoses());
  world.command(make_diagnose(1, /*stacks=*/true));
  world.settle();
  EXPECT_TRUE(requested_stacks(world));
  ASSERT_EQ(world.diagnoses.size(), 1U);
  ASSERT_EQ(world.diagnoses[0].ranks.size(), 2U);
  EXPECT_TRUE(world.diagnoses[0].ranks[1].alive);
  EXPECT_EQ(world.diagnoses[0].stacks_missing, "");
  world.advance(absl::Seconds(20));
  EXPECT_EQ(world.diagnoses.size(), 1U) << "answered once";
}

TEST(DiagnosisTest, WithoutStacksDoesNotWaitForTheShim) {
  NodeWorld world = running();
  world.hang_shim(1);
  world.command(make_diagnose(1, /*stacks=*/false));
  world.settle();
  ASSERT_EQ(world.diagnoses.size(), 1U);
  EXPECT_FALSE(requested_stacks(world));
}

TEST(DiagnosisTest, HangingShimDelaysOnlyUntilTheDeadline) {
  NodeWorld world = running();
  world.hang_shim(1);
  world.command(make_diagnose(1, /*stacks=*/true, 3000));
  world.advance(absl::Seconds(2));
  EXPECT_TRUE(world.diagnoses.empty());
  world.advance(absl::Milliseconds(1500));
  ASSERT_EQ(world.diagnoses.size(), 1U);
  EXPECT_NE(world.diagnoses[0].stacks_missing, "");
  EXPECT_EQ(world.diagnoses[0].ranks.size(), 2U) << "files on the disk are read anyway";
}

TEST(DiagnosisTest, AnswersAtOnceWithoutAShimLink) {
  NodeWorld world = running();
  world.hang_shim(1);
  world.command(make_diagnose(1, /*stacks=*/true));
  world.break_link(1);
  world.settle();
  ASSERT_EQ(world.diagnoses.size(), 1U);
  EXPECT_NE(world.diagnoses[0].stacks_missing, "");
}

TEST(DiagnosisTest, EndedRanksAreReportedWithoutStacks) {
  NodeWorld world = running();
  world.rank_exits(1, 0, 5);
  world.rank_exits(1, 1, 5);
  world.settle();
  ASSERT_EQ(world.last(1).phase(), v1::AttemptReport::ENDED);
  world.command(make_diagnose(1, /*stacks=*/true));
  world.settle();
  ASSERT_EQ(world.diagnoses.size(), 1U);
  EXPECT_FALSE(world.diagnoses[0].ranks[0].alive);
  EXPECT_FALSE(requested_stacks(world));
}

TEST(DiagnosisTest, WaitEndsWhenTheRanksEnd) {
  NodeWorld world = running();
  world.hang_shim(1);
  world.command(make_diagnose(1, /*stacks=*/true));
  world.settle();
  ASSERT_TRUE(world.diagnoses.empty());
  world.kill_shim(1);
  world.settle();
  EXPECT_EQ(world.diagnoses.size(), 1U);
}

TEST(DiagnosisTest, UnknownAttemptGetsAnEmptyDiagnosis) {
  NodeWorld world = running();
  world.command(make_diagnose(7, /*stacks=*/true));
  world.settle();
  ASSERT_EQ(world.diagnoses.size(), 1U);
  EXPECT_TRUE(world.diagnoses[0].ranks.empty());
}

TEST(DiagnosisTest, RepeatedRequestIsAnsweredForTheNewerSession) {
  NodeWorld world = running();
  world.hang_shim(1);
  world.command(make_diagnose(1, /*stacks=*/true));
  world.settle();
  world.disconnect();
  world.connect();
  world.command(make_diagnose(1, /*stacks=*/true, 1000));
  world.advance(absl::Seconds(2));
  ASSERT_EQ(world.diagnoses.size(), 1U);
  EXPECT_EQ(world.diagnoses[0].session, 2);
}

}  // namespace
}  // namespace titan::node
