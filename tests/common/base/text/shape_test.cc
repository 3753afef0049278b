#include "common/base/text/message_text.h"
#include "gtest/gtest.h"

namespace titan::text {
namespace {

TEST(ShapeTest, MessagesOfOneKindDifferOnlyInNumbers) {
  EXPECT_EQ(shape_of("step 12: 3 of 64 shards"), "step #: # of # shards");
  EXPECT_EQ(shape_of("step 12: full"), shape_of("step 1300: full"));
  EXPECT_NE(shape_of("step 12: full"), shape_of("step 12: gone"));
  EXPECT_EQ(shape_of(""), "");
  EXPECT_EQ(shape_of(std::string(1000, 'x')).size(), 200u);
  EXPECT_EQ(shape_of(std::string(1000, '7')), "#");
}

}  // namespace
}  // namespace titan::text
