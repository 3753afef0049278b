#include "controller/core/spools.h"

#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(SpoolsTest, ReportsTheFirstFewThenPowersOfTen) {
  Spools spools;
  std::vector<int> reported;
  for (int i = 1; i <= 100; ++i) {
    std::string message = "no space on /disk1";
    if (spools.should_report({"job", 1}, "RankWarning", message)) reported.push_back(i);
  }
  EXPECT_EQ(reported, (std::vector<int>{1, 2, 3, 10, 100}));
  std::string message = "another kind of message";
  EXPECT_TRUE(spools.should_report({"job", 1}, "RankWarning", message));
  EXPECT_EQ(message, "another kind of message");
}

TEST(SpoolsTest, DamageIsReportedOncePerOffset) {
  Spools spools;
  const RankKey rank{"job", 1, 0};
  EXPECT_EQ(spools.note_damage(rank, 100), Spools::Damage::kReport);
  EXPECT_EQ(spools.note_damage(rank, 100), Spools::Damage::kIgnore);
  for (int i = 1; i < 15; ++i) EXPECT_EQ(spools.note_damage(rank, 100 + i), Spools::Damage::kReport) << i;
  EXPECT_EQ(spools.note_damage(rank, 200), Spools::Damage::kReportLast);
  EXPECT_EQ(spools.note_damage(rank, 201), Spools::Damage::kIgnore);
  EXPECT_EQ(spools.note_damage({"job", 1, 1}, 201), Spools::Damage::kReport);
}

TEST(SpoolsTest, DropReturnsTheRanksWithCursors) {
  Spools spools;
  spools.cursor({"a", 2, 1}) = 7;
  spools.cursor({"a", 1, 0}) = 5;
  spools.cursor({"b", 1, 0}) = 3;
  EXPECT_EQ(spools.drop("a"), (std::vector<RankKey>{{"a", 1, 0}, {"a", 2, 1}}));
  EXPECT_TRUE(spools.drop("a").empty());
  EXPECT_EQ(spools.cursor({"a", 1, 0}), 0);
  EXPECT_EQ(spools.cursor({"b", 1, 0}), 3);
}

}  // namespace
}  // namespace titan::core
