#include "worker/daemon/lost_contact.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A worker with a wrong port goes on saying so, and does not flood the log.
TEST(LostContactTest, SaysTheSameReasonAgainEveryHalfMinute) {
  LostContact contact;
  EXPECT_THAT(contact.failed("refused", absl::Seconds(100)).value_or(""),
              HasSubstr("no session with the controller: refused"));
  int said = 0;
  for (int second = 101; second < 130; ++second) said += contact.failed("refused", absl::Seconds(second)).has_value();
  EXPECT_EQ(said, 0);
  EXPECT_THAT(contact.failed("refused", absl::Seconds(131)).value_or(""),
              AllOf(HasSubstr("refused"), HasSubstr("31 tries in 31s"), HasSubstr("--controller")));
  EXPECT_TRUE(contact.failed("unknown host", absl::Seconds(132)).has_value());
  contact.found();
  EXPECT_TRUE(contact.failed("unknown host", absl::Seconds(133)).has_value());
}

}  // namespace
}  // namespace titan::daemon
