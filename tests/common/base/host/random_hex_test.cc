#include "common/base/host/random_hex.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace titan::host {
namespace {

TEST(RandomHexTest, HasTheRequestedLengthAndIsUnique) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_hex(8);
    EXPECT_EQ(text.size(), 16u);
    EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos) << text;
    EXPECT_TRUE(seen.insert(text).second) << text;
  }
  EXPECT_EQ(random_hex(300).size(), 600u);  // getrandom() may return fewer bytes than this in one call.
  EXPECT_EQ(random_hex(0), "");
}

}  // namespace
}  // namespace titan::host
