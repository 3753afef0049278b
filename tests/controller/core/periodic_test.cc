#include "controller/core/timing.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(PeriodicTest, IntervalStartsAtTheLastRun) {
  Periodic periodic(absl::Seconds(5));
  EXPECT_TRUE(periodic.is_due(absl::Seconds(2)));
  EXPECT_FALSE(periodic.is_due(absl::Seconds(6)));
  EXPECT_TRUE(periodic.is_due(absl::Seconds(9)));  // Late; the next interval starts here.
  EXPECT_FALSE(periodic.is_due(absl::Seconds(13)));
  EXPECT_TRUE(periodic.is_due(absl::Seconds(14)));
}

}  // namespace
}  // namespace titan::core
