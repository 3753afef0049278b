#include "controller/core/refusals.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

using NoteResult = RefusedWorkers::NoteResult;

RefusedWorker refused_at(absl::Duration at, const std::string& reason = "WRONG_CLUSTER") {
  return {"10.0.0.1:1", "2.0", "instance", reason, "a message", at};
}

TEST(RefusalsTest, SameReasonIsReportedOnceAMinute) {
  RefusedWorkers refusals;
  EXPECT_EQ(refusals.note("n1", refused_at(absl::Seconds(1))), NoteResult::kReport);
  EXPECT_EQ(refusals.note("n1", refused_at(absl::Seconds(2))), NoteResult::kAlreadyReported);
  EXPECT_EQ(refusals.note("n1", refused_at(absl::Seconds(60))), NoteResult::kAlreadyReported);
  EXPECT_EQ(refusals.note("n1", refused_at(absl::Seconds(61))), NoteResult::kReport);
  EXPECT_EQ(refusals.note("n1", refused_at(absl::Seconds(62), "NODE_ID_IN_USE")), NoteResult::kReport);
  EXPECT_EQ(refusals.find("n1")->reason, "NODE_ID_IN_USE");
}

TEST(RefusalsTest, RefusalIsKeptForAMinuteAfterTheLastTry) {
  RefusedWorkers refusals;
  refusals.note("n1", refused_at(absl::Seconds(1)));
  refusals.note("n2", refused_at(absl::Seconds(1)));
  refusals.note("n2", refused_at(absl::Seconds(30)));
  EXPECT_TRUE(refusals.take_old(absl::Seconds(61)).empty());
  EXPECT_EQ(refusals.take_old(absl::Seconds(62)), std::vector<std::string>{"n1"});
  EXPECT_EQ(refusals.find("n1"), nullptr);
  EXPECT_EQ(refusals.nodes(), std::vector<std::string>{"n2"});
  refusals.forget("n2");
  EXPECT_EQ(refusals.find("n2"), nullptr);
}

// Anyone who can reach the port can make up names.
TEST(RefusalsTest, NumberOfNamesIsLimited) {
  RefusedWorkers refusals;
  for (int i = 0; i < 1000; ++i) refusals.note(absl::StrCat("n", i), refused_at(absl::Seconds(1)));
  EXPECT_EQ(refusals.note("another", refused_at(absl::Seconds(2))), NoteResult::kTableFull);
  EXPECT_EQ(refusals.find("another"), nullptr);
  EXPECT_EQ(refusals.note("n1", refused_at(absl::Seconds(2))), NoteResult::kAlreadyReported);
}

}  // namespace
}  // namespace titan::core
