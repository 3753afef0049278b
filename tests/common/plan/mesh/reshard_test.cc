// The engine frees weights by this plan and the memory estimate counts by it: a change here changes both.

#include "common/plan/mesh/reshard.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::mesh {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<Reshard> plan(const char* policy, size_t blocks, bool gathers, bool pipelined) {
  return reshard_plan(policy, blocks, gathers, pipelined).value();
}

TEST(KeepPlanTest, LastTwoBlocksStayGatheredByDefault) {
  EXPECT_THAT(plan("default", 4, true, false), ElementsAre(Reshard::kAfterForward, Reshard::kAfterForward,
                                                           Reshard::kAfterBackward, Reshard::kAfterBackward));
  EXPECT_THAT(plan("default", 1, true, false), ElementsAre(Reshard::kAfterBackward));
  EXPECT_TRUE(plan("default", 0, true, false).empty());
}

TEST(KeepPlanTest, ReshardsOncePerStepWithoutGathersOrInPipelines) {
  EXPECT_THAT(plan("default", 3, false, false), Each(Reshard::kAtStepEnd));
  EXPECT_THAT(plan("default", 3, true, true), Each(Reshard::kAtStepEnd));
  EXPECT_THAT(plan("never", 3, true, true), Each(Reshard::kAtStepEnd));
}

TEST(KeepPlanTest, PoliciesApplyToAllBlocks) {
  EXPECT_THAT(plan("always", 3, true, true), Each(Reshard::kAfterForward));
  EXPECT_THAT(plan("always", 3, false, false), Each(Reshard::kAfterForward));
  EXPECT_THAT(plan("never", 3, true, false), Each(Reshard::kAfterBackward));
  EXPECT_EQ(reshard_plan("sometimes", 3, true, false).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::mesh
