#include "controller/cli/whole_number.h"

#include "gtest/gtest.h"

namespace titan::cli {
namespace {

// What is typed wrong is told with what was typed, and with nothing that nobody typed.
TEST(WholeNumberTest, TellsWhatIsWrongInFewWords) {
  const CLI::Validator check = whole_number(1);
  std::string good = "12";
  EXPECT_EQ(check(good), "");
  for (std::string bad : {"a", "-1", "0", "1.5", "", "99999999999999999999"}) {
    EXPECT_EQ(check(bad), "'" + bad + "' is not a whole number of at least 1");
  }
}

}  // namespace
}  // namespace titan::cli
