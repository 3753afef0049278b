#include "worker/node/daemon/lost_contact.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A worker with a wrong port, or one that is refused, repeats the reason at growing intervals.
TEST(LostContactTest, RepeatsTheSameReasonAtGrowingIntervals) {
  LostContact contact;
  EXPECT_THAT(contact.failed("refused", absl::Seconds(100)).value_or(""),
              AllOf(HasSubstr("no session with the controller: refused"), HasSubstr("retrying")));
  std::vector<int> minutes;
  for (int second = 1; second <= 8 * 3600; ++second) {
    const std::optional<std::string> line = contact.failed("refused", absl::Seconds(100 + second));
    if (!line) continue;
    EXPECT_THAT(*line, AllOf(HasSubstr("refused"), HasSubstr("tries in"), HasSubstr("--controller")));
    minutes.push_back(second / 60);
  }
  EXPECT_THAT(minutes, ElementsAre(1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363, 423));
}

TEST(LostContactTest, NewReasonIsReportedAtOnceAndAlternatingOnesOnce) {
  LostContact contact;
  int lines = 0;
  for (int second = 0; second < 60; ++second) {
    lines += contact.failed(second % 2 == 0 ? "refused" : "no answer", absl::Seconds(second)).has_value();
  }
  EXPECT_EQ(lines, 2);
  EXPECT_TRUE(contact.failed("unknown host", absl::Seconds(60)).has_value());
  contact.found();
  EXPECT_TRUE(contact.failed("unknown host", absl::Seconds(61)).has_value()) << "lost again";
}

}  // namespace
}  // namespace titan::daemon
