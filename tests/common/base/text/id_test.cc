// Ids become folder names, host names and parts of URLs, so an accepted id must stay valid in later versions.

#include "common/base/text/id.h"

#include <string>

#include "gtest/gtest.h"

namespace titan::text {
namespace {

TEST(IdTest, FollowsTheForm) {
  for (const char* good : {"a", "n1", "gpu-07"}) EXPECT_TRUE(is_id(good)) << good;
  for (const char* bad : {"", "1n", "N1", "a-", "a_b", "a.b"}) EXPECT_FALSE(is_id(bad)) << bad;
  EXPECT_FALSE(is_id(std::string(64, 'a')));
}

}  // namespace
}  // namespace titan::text
