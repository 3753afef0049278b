// The engine frees weights by this plan and the memory estimate counts by it: a change here changes both.

#include "common/plan/mesh/reshard.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::mesh {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<Keep> plan(const char* policy, size_t blocks, bool gathers, bool pipelined) {
  return keep_plan(policy, blocks, gathers, pipelined).value();
}

TEST(KeepPlanTest, TheLastTwoBlocksStayByDefault) {
  EXPECT_THAT(plan("default", 4, true, false),
              ElementsAre(Keep::kNothing, Keep::kNothing, Keep::kUntilBackward, Keep::kUntilBackward));
  EXPECT_THAT(plan("default", 1, true, false), ElementsAre(Keep::kUntilBackward));
  EXPECT_TRUE(plan("default", 0, true, false).empty());
}

TEST(KeepPlanTest, OnceAStepWhereNothingIsGatheredOrMicrobatchesComeAndGo) {
  EXPECT_THAT(plan("default", 3, false, false), Each(Keep::kUntilStepEnd));
  EXPECT_THAT(plan("default", 3, true, true), Each(Keep::kUntilStepEnd));
  EXPECT_THAT(plan("never", 3, true, true), Each(Keep::kUntilStepEnd));
}

TEST(KeepPlanTest, PoliciesHoldForAllBlocks) {
  EXPECT_THAT(plan("always", 3, true, true), Each(Keep::kNothing));
  EXPECT_THAT(plan("always", 3, false, false), Each(Keep::kNothing));
  EXPECT_THAT(plan("never", 3, true, false), Each(Keep::kUntilBackward));
  EXPECT_EQ(keep_plan("sometimes", 3, true, false).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::mesh
