#include "controller/core/timing.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(CyclesTest, FirstCycleWaitsForNodesOrATimeout) {
  Cycles cycles;
  cycles.wait_until(absl::Seconds(5));
  EXPECT_FALSE(cycles.begin(absl::Seconds(4), /*all_heard=*/false));
  EXPECT_FALSE(cycles.has_begun());
  EXPECT_TRUE(cycles.begin(absl::Seconds(4), /*all_heard=*/true));
  EXPECT_TRUE(cycles.begin(absl::Seconds(4), /*all_heard=*/false));
  Cycles others;
  others.wait_until(absl::Seconds(5));
  EXPECT_TRUE(others.begin(absl::Seconds(5), /*all_heard=*/false));
}

TEST(CyclesTest, PausesAreProportionalAndCapped) {
  Cycles cycles;
  cycles.pause(absl::Seconds(1), 64);
  EXPECT_FALSE(cycles.is_paused(absl::Seconds(1)));
  cycles.pause(absl::Seconds(1), 1000);
  EXPECT_TRUE(cycles.is_paused(absl::Milliseconds(1009)));
  EXPECT_FALSE(cycles.is_paused(absl::Milliseconds(1010)));
  cycles.pause(absl::Seconds(2), 1'000'000);
  EXPECT_TRUE(cycles.is_paused(absl::Milliseconds(2199)));
  EXPECT_FALSE(cycles.is_paused(absl::Milliseconds(2200)));
}

TEST(CyclesTest, ARequestIsTakenOnce) {
  Cycles cycles;
  EXPECT_FALSE(cycles.is_requested());
  cycles.request();
  cycles.request();
  EXPECT_TRUE(cycles.is_requested());
  cycles.take_request();
  EXPECT_FALSE(cycles.is_requested());
}

}  // namespace
}  // namespace titan::core
