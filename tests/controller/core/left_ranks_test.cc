#include "controller/core/left_behind.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

const AttemptKey kOld{"a", 1}, kNew{"a", 2};

LeftBehind until(absl::Duration time, bool may_train = true) {
  return {"projects/p/jobs/a", 4, time, absl::UnixEpoch() + time, may_train};
}

TEST(LeftRanksTest, PreparedRanksDoNotTrain) {
  LeftRanks left;
  left.add("n1", kNew, until(absl::Seconds(600), /*may_train=*/false));
  EXPECT_FALSE(left.may_train("n1", kNew));
  EXPECT_FALSE(left.may_train(kNew));
  left.add("n2", kNew, until(absl::Seconds(600)));
  EXPECT_TRUE(left.may_train(kNew));
  EXPECT_FALSE(left.may_train(kOld));
  EXPECT_TRUE(left.erase("n2", kNew));
  EXPECT_FALSE(left.erase("n2", kNew));
  EXPECT_FALSE(left.may_train(kNew));
}

// Sending a stop to a node never extends the wait for its ranks.
TEST(LeftRanksTest, ABoundShortensAndNeverExtends) {
  LeftRanks left;
  left.add("n1", kOld, until(absl::Seconds(30)));
  left.add("n1", kNew, until(absl::Seconds(600)));
  EXPECT_TRUE(left.bound("n1", absl::Seconds(45), absl::UnixEpoch() + absl::Seconds(45)));
  EXPECT_EQ(left.on("n1").at(kOld).until, absl::Seconds(30));
  EXPECT_EQ(left.on("n1").at(kNew).until, absl::Seconds(45));
  EXPECT_EQ(left.on("n1").at(kNew).until_wall, absl::UnixEpoch() + absl::Seconds(45));
  EXPECT_FALSE(left.bound("n2", absl::Seconds(1), absl::UnixEpoch()));
}

TEST(LeftRanksTest, OverReturnsRanksWhoseTimeHasPassed) {
  LeftRanks left;
  left.add("n1", kOld, until(absl::Seconds(30)));
  left.add("n2", kNew, until(absl::Seconds(60)));
  EXPECT_TRUE(left.over(absl::Seconds(29)).empty());
  const auto over = left.over(absl::Seconds(30));
  ASSERT_EQ(over.size(), 1);
  EXPECT_EQ(over.front(), (std::pair<std::string, AttemptKey>{"n1", kOld}));
  left.drop("n1");
  EXPECT_TRUE(left.on("n1").empty());
}

TEST(LeftRanksTest, JobIsAddedOnlyOnce) {
  LeftRanks left;
  EXPECT_TRUE(left.add_job("a"));
  EXPECT_FALSE(left.add_job("a"));
  EXPECT_TRUE(left.is_leaving("a"));
  left.erase_job("a");
  EXPECT_FALSE(left.is_leaving("a"));
}

}  // namespace
}  // namespace titan::core
