#include "controller/cli/verbs.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

TEST(IntegerRangeTest, ErrorQuotesOnlyTheBadValue) {
  const CLI::Validator check = integer_range(1);
  std::string good = "12";
  EXPECT_EQ(check(good), "");
  for (std::string bad : {"a", "-1", "0", "1.5", "", "99999999999999999999"}) {
    EXPECT_EQ(check(bad), "'" + bad + "' is not an integer of at least 1");
  }
}

// An option of 32 bits names its range; CLI11 would only report a failed conversion.
TEST(IntegerRangeTest, ErrorNamesTheRange) {
  const CLI::Validator check = integer_range(-10, 10);
  std::string good = "-10";
  EXPECT_EQ(check(good), "");
  std::string bad = "99999999999";
  EXPECT_EQ(check(bad), "'99999999999' is not an integer from -10 to 10");
}

}  // namespace
}  // namespace titan::cli
