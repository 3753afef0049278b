#include "common/text/utf8.h"

#include "gtest/gtest.h"

namespace titan::text {
namespace {

std::string marks(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "\xEF\xBF\xBD";
  return text;
}

TEST(Utf8Test, ValidTextStaysAsItIs) {
  for (const std::string text : {"", "plain", "\xC3\xA4", "\xE2\x82\xAC", "\xED\x9F\xBF", "\xEE\x80\x80",
                                 "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF", "g\xC2\x80z"}) {
    EXPECT_EQ(valid_utf8(text), text);
  }
  const std::string zero("a\0b", 3);
  EXPECT_EQ(valid_utf8(zero), zero);
}

TEST(Utf8Test, EachByteOfWhatIsNoneIsReplaced) {
  EXPECT_EQ(valid_utf8("g\x80z"), "g" + marks(1) + "z");
  EXPECT_EQ(valid_utf8("\xC3"), marks(1)) << "cut";
  EXPECT_EQ(valid_utf8("\xE2\x82"), marks(2)) << "cut";
  EXPECT_EQ(valid_utf8("\xE2\x82z"), marks(2) + "z");
  EXPECT_EQ(valid_utf8("\xC0\x80"), marks(2)) << "overlong";
  EXPECT_EQ(valid_utf8("\xE0\x80\x80"), marks(3)) << "overlong";
  EXPECT_EQ(valid_utf8("\xF0\x80\x80\x80"), marks(4)) << "overlong";
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), marks(3)) << "a surrogate";
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80"), marks(4)) << "past the last";
  EXPECT_EQ(valid_utf8("\xFF\xFE"), marks(2));
}

}  // namespace
}  // namespace titan::text
