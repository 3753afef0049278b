#include "controller/core/strays.h"

#include "gtest/gtest.h"

namespace titan::core {
namespace {

const AttemptKey kFirst{"a", 1}, kSecond{"b", 2};

TEST(StraysTest, NodeWithoutStraysHasNoEntry) {
  Strays strays;
  EXPECT_TRUE(strays.on("n1").empty());
  EXPECT_EQ(strays.find("n1", kFirst), nullptr);
  EXPECT_TRUE(strays.take("n1").empty());
  EXPECT_TRUE(strays.all().empty());
  strays.add("n1", kFirst);
  EXPECT_FALSE(strays.erase("n1", kSecond));
  EXPECT_EQ(strays.all().size(), 1);
  EXPECT_TRUE(strays.erase("n1", kFirst));
  EXPECT_TRUE(strays.all().empty());
}

TEST(StraysTest, AddingAnExistingStrayChangesNothing) {
  Strays strays;
  strays.add("n1", kFirst).devices = 3;
  strays.add("n1", kSecond).devices = 2;
  EXPECT_EQ(strays.add("n1", kFirst).devices, 3);
  EXPECT_EQ(strays.devices_on("n1"), 5);
  EXPECT_EQ(strays.devices_on("n2"), 0);
  EXPECT_EQ(strays.find("n1", kSecond)->devices, 2);
}

TEST(StraysTest, TakeRemovesAllStraysOfANode) {
  Strays strays;
  strays.add("n1", kFirst);
  strays.add("n1", kSecond);
  strays.add("n2", kFirst);
  EXPECT_EQ(strays.take("n1").size(), 2);
  EXPECT_FALSE(strays.contains("n1", kFirst));
  EXPECT_TRUE(strays.contains("n2", kFirst));
}

}  // namespace
}  // namespace titan::core
