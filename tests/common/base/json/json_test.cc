// Corner cases of the dialect, and what the reader knows about a text that is not JSON. json_equality_test.py compares
// the reader with Python's json.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "common/base/json/reader.h"
#include "common/base/json/value.h"

namespace titan::json {
namespace {

// Returns the reader after its last event: kEnd or kError.
Reader read_all(std::string_view text) {
  Reader reader(text);
  Event event = reader.next();
  while (event != Event::kEnd && event != Event::kError) event = reader.next();
  return reader;
}
bool is_json(std::string_view text) { return read_all(text).next() == Event::kEnd; }

TEST(JsonReaderTest, NumbersAreReadLikePython) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "-0", "1e999", "0.5E-3", "123456789012345678901234567890"})
    EXPECT_TRUE(is_json(number)) << number;
  for (const char* number : {"nan", "inf", "+1", "-NaN", "Inf", "01", "1.", ".5", "1e", "0x1", "NaNa", "--1", "1_000"})
    EXPECT_FALSE(is_json(number)) << number;
}

TEST(JsonReaderTest, DeepNestingIsSafe) {
  const std::string open(2'000'000, '['), close(2'000'000, ']');
  EXPECT_TRUE(is_json(open + close));
  EXPECT_FALSE(is_json(open + close + "]"));
  EXPECT_FALSE(is_json(open + close.substr(1)));
}

// The rest of a file that was cut into lines shows what kind of file it is.
TEST(JsonReaderTest, ErrorReportsTheOpenBracket) {
  const auto end = [](std::string_view text) {
    const Reader reader = read_all(text);
    return std::string(reader.ends_early() ? "ends in " : "wrong in ") +
           (reader.open_bracket() ? reader.open_bracket() : '-');
  };
  EXPECT_EQ(end("{"), "ends in {");
  EXPECT_EQ(end("["), "ends in [");
  EXPECT_EQ(end("{\"a\": [1, {\"b\": 2}"), "ends in [");
  EXPECT_EQ(end("{\"a\": \"unfinished"), "ends in {");
  EXPECT_EQ(end("{\"a\": tru"), "ends in {");
  EXPECT_EQ(end("{\"a\" 1}"), "wrong in {");
  EXPECT_EQ(end("{\"a\": 1,}"), "wrong in {");
  EXPECT_EQ(end("\"a\" \"b\""), "wrong in -");
  EXPECT_EQ(end(""), "ends in -");
  EXPECT_EQ(read_all("{\"a\": x}").at(), 6U);
}

TEST(JsonStringTest, HalvesOfASurrogatePair) {
  std::string text;
  EXPECT_TRUE(unescape(R"(\ud83d\ude00 \u00e9\n\/\")", text));
  EXPECT_EQ(text, "\U0001F600 \u00e9\n/\"");
  for (const char* half : {R"(a\ud83d)", R"(\ude00\ud83d)", R"(\ud83d\u0041)", R"(\ud83dx)"}) {
    text.clear();
    EXPECT_FALSE(unescape(half, text)) << half;
  }
  EXPECT_EQ(text, "\xED\xA0\xBDx");
}

TEST(JsonValueTest, InfiniteNumbersBecomeNull) {
  EXPECT_TRUE(std::isnan(parse("NaN")->get<double>()));
  EXPECT_EQ(parse("[-Infinity, 1e999]")->dump(), "[null,null]");  // nlohmann writes infinite numbers as null.
  EXPECT_EQ(parse(R"({"a": 1, "b": 2, "a": 3})")->dump(), R"({"a":3,"b":2})");
  EXPECT_EQ(parse("18446744073709551616")->get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(parse("-9223372036854775808")->get<int64_t>(), INT64_MIN);
  EXPECT_FALSE(parse("{\"a\": }").has_value());
}

}  // namespace
}  // namespace titan::json
