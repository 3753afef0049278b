#include "controller/core/continuation.h"

#include <variant>

#include "gtest/gtest.h"

namespace titan::core {
namespace {

TEST(ExpectedTest, ContinuationsAreTakenOnce) {
  Expected expected;
  const ChangeToken first = expected.add(Created{"a"}), second = expected.add(Created{"b"});
  const std::optional<Continuation> taken = expected.take(first);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(std::get<Created>(*taken).uid, "a");
  EXPECT_FALSE(expected.take(first).has_value());
  EXPECT_EQ(std::get<Created>(*expected.take(second)).uid, "b");
}

// Token 0 belongs to transactions that nobody waits for, and an outcome may arrive late.
TEST(ExpectedTest, TokensAreNotZeroAndNotUsedAgain) {
  Expected expected;
  const ChangeToken first = expected.add(Created{"a"});
  EXPECT_NE(first, 0);
  expected.take(first);
  EXPECT_NE(expected.add(Created{"b"}), first);
  EXPECT_FALSE(expected.take(0).has_value());
}

}  // namespace
}  // namespace titan::core
