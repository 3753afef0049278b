#include "common/base/text/utf8.h"

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

TEST(Utf8Test, EachInvalidByteIsReplaced) {
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

TEST(Utf8Test, UnprintableCharactersAreReplaced) {
  EXPECT_EQ(printable("plain \xC3\xA4 \xE2\x82\xAC \xC2\xA0"), "plain \xC3\xA4 \xE2\x82\xAC \xC2\xA0");
  EXPECT_EQ(printable("a\033[31mb\r\n\tc\x7F"), "a?[31mb???c?");
  EXPECT_EQ(printable("a\xC2\x9B"
                      "31mb"),
            "a?31mb")
      << "an escape sequence in one character";
  EXPECT_EQ(printable("a\x9B\xFFz\xC2"), "a??z?") << "no text";
  EXPECT_EQ(printable(std::string("a\0b\nc\td\r", 8), "\n\t"), "a?b\nc\td?");
}

TEST(Utf8Test, LongTextIsCutBetweenCharactersAndMarked) {
  EXPECT_EQ(shortened("12345", 5), "12345");
  EXPECT_EQ(shortened("123456", 5), "12...");
  EXPECT_EQ(shortened("1\xE2\x82\xAC\xE2\x82\xAC", 6), "1...") << "not in the middle of the first";
  EXPECT_EQ(shortened("\x80\x80\x80\x80\x80", 4), "...") << "no text at all";
  EXPECT_EQ(shortened("123456", 2), "..");
}

}  // namespace
}  // namespace titan::text
