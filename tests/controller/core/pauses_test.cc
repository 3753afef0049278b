#include "controller/core/timing.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(PausesTest, TicksLaterThanHalfALeaseArePauses) {
  Pauses pauses(absl::Seconds(5));
  pauses.start(absl::Seconds(100));
  EXPECT_EQ(pauses.tick(absl::Milliseconds(102500)), absl::ZeroDuration());
  EXPECT_FALSE(pauses.is_paused(absl::Seconds(105)));
  EXPECT_TRUE(pauses.is_paused(absl::Milliseconds(105001)));
  EXPECT_EQ(pauses.awake_for(absl::Seconds(106)), absl::Seconds(6));
  EXPECT_EQ(pauses.tick(absl::Seconds(106)), absl::Milliseconds(3500));
  EXPECT_FALSE(pauses.is_paused(absl::Seconds(106)));
  EXPECT_EQ(pauses.awake_for(absl::Seconds(107)), absl::Seconds(1));
}

TEST(PausesTest, ShortLeaseDoesNotTurnSlowTicksIntoPauses) {
  Pauses pauses(absl::Milliseconds(200));
  pauses.start(absl::ZeroDuration());
  EXPECT_EQ(pauses.tick(absl::Seconds(1)), absl::ZeroDuration());
  EXPECT_EQ(pauses.tick(absl::Milliseconds(2001)), absl::Milliseconds(1001));
}

}  // namespace
}  // namespace titan::core
