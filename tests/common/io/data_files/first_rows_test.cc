// Contents of a JSON row, and what the first rows of a file show about all of its rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/data_files/check_files.h"
#include "common/io/data_files/json_row.h"
#include "tests/common/io/data_files/folder.h"

namespace titan::data_files {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using FirstRowsTest = testing::Folder;

std::string text_or_problem(std::string_view row) {
  const RowText text = text_of_row(row, "text");
  return text.problem.empty() ? text.text : "! " + text.problem;
}

TEST(JsonRowTest, FindsTextsAmongOtherMembers) {
  EXPECT_EQ(text_or_problem(R"({"text": "a", "score": NaN, "range": [-Infinity, Infinity, 1e999]})"), "a");
  EXPECT_EQ(text_or_problem(R"({"meta": {"text": "inner"}, "text": "outer", "list": [{"text": "x"}]})"), "outer");
  EXPECT_EQ(text_or_problem(R"({"text": "first", "text": "last"})"), "last");
  EXPECT_EQ(text_or_problem(R"({"te\u0078t": "escaped key", "half": "\ud83d"})"), "escaped key");
  EXPECT_EQ(text_or_problem("\xEF\xBB\xBF{\"text\": \"marked\"}\r\n"), "marked");
  EXPECT_EQ(text_or_problem(R"({"text": "\u00e9\n\ud83d\ude00", "n": 123456789012345678901234567890})"),
            "\u00e9\n\U0001F600");
}

TEST(JsonRowTest, ProblemsSayWhatToDo) {
  EXPECT_EQ(text_or_problem("{\"text\": \"a\" oops}"), "! not JSON");
  EXPECT_EQ(text_or_problem("{\"text\": \"a\", \"n\": nan}"), "! not JSON");
  EXPECT_EQ(text_or_problem("{\"text\": \"\xff\"}"), "! not JSON in UTF-8");
  EXPECT_EQ(text_or_problem(R"({"text": 5})"), "! \"text\" is not a string");
  EXPECT_THAT(text_or_problem(R"({"text": "\ud83d"})"), HasSubstr("half of a surrogate pair"));
  EXPECT_THAT(text_or_problem("[\n"), AllOf(HasSubstr("ends inside an array"), HasSubstr("jq -c '.[]'")));
  EXPECT_THAT(text_or_problem("{\n"), AllOf(HasSubstr("ends inside an object"), HasSubstr("jq -c .")));
  EXPECT_THAT(text_or_problem(R"([{"text": "a"}])"),
              AllOf(HasSubstr("not a JSON object but an array"), HasSubstr("jq")));
  EXPECT_THAT(text_or_problem(R"({"body": "a", "id": 1})"),
              AllOf(HasSubstr("no \"text\""), HasSubstr("its keys: \"body\", \"id\""), HasSubstr("text_key")));
  EXPECT_THAT(text_or_problem(R"({"messages": []})"), HasSubstr("messages_key = \"messages\""));
  EXPECT_THAT(text_or_problem(R"({"conversations": []})"), HasSubstr("ShareGPT"));
  EXPECT_THAT(text_or_problem(R"({"instruction": "", "input": "", "output": ""})"), HasSubstr("Alpaca"));
  EXPECT_THAT(text_or_problem(std::string("\xFF\xFE{\0\"\0", 6)), HasSubstr("iconv -f UTF-16"));
  EXPECT_THAT(text_or_problem(std::string("{\0\"\0t\0", 6)), HasSubstr("UTF-16LE"));
  EXPECT_THAT(text_or_problem("\x1F\x8B\x08"), HasSubstr("gzip"));
  EXPECT_THAT(text_or_problem("version https://git-lfs.github.com/spec/v1"), HasSubstr("git lfs pull"));
  EXPECT_THAT(text_or_problem("<!DOCTYPE html>"), HasSubstr("HTML"));
}

TEST_F(FirstRowsTest, OneGoodRowIsEnough) {
  const auto check = [&](const std::string& text, const RowRules& rules = {}) {
    return std::string(check_first_rows({DatasetFormat::kJsonLines, {write("a.jsonl", text)}}, rules).message());
  };
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_EQ(check("\n\r\n  \n" + good), "");
  EXPECT_EQ(check("\xEF\xBB\xBF\r\n" + good, {.max_bad_lines = 0}), "");
  EXPECT_EQ(check("broken\n" + good), "");
  EXPECT_EQ(check("{\"text\": \"\"}\n" + good), "");
  EXPECT_THAT(check("broken\n" + good, {.max_bad_lines = 0}),
              AllOf(HasSubstr("a.jsonl:1: not JSON"), HasSubstr("max_bad_lines = 0")));
  EXPECT_THAT(check("broken\n[\n\n{\"body\": 1}\nx\n"),
              AllOf(HasSubstr("holds no document"), HasSubstr("a.jsonl:1: not JSON, begins with broken"),
                    HasSubstr("a.jsonl:2: not JSON: the line ends"), HasSubstr("a.jsonl:4: no \"text\""),
                    HasSubstr("and 1 more")));
  EXPECT_THAT(check("[\n{\"text\": \"a\"},\n{\"text\": \"b\"}\n]\n"),
              AllOf(HasSubstr("a.jsonl:1"), HasSubstr("array")));
  EXPECT_THAT(check("\n[{\"text\": \"a\"}]\n" + good), AllOf(HasSubstr("a.jsonl:2"), HasSubstr("array")));
  EXPECT_EQ(check("[INFO] begins\n" + good), "");
  EXPECT_THAT(check(""), HasSubstr("a.jsonl is empty"));
  EXPECT_THAT(check("\n\n"), HasSubstr("is empty"));
  EXPECT_THAT(check("{\"text\": \"\"}\n"), HasSubstr("its text is empty"));
  std::string bad;
  for (int i = 0; i < 101; ++i) bad += "x\n";
  EXPECT_THAT(check(bad + good), AllOf(HasSubstr("the first 101 lines are malformed"), HasSubstr("and 98 more")));
  EXPECT_EQ(check(bad.substr(2) + good), "");
}

TEST_F(FirstRowsTest, ConversationsAreReadLikeTheRanksDo) {
  const auto check = [&](const std::string& text, bool all = false) {
    const RowRules rules{.messages_key = "messages", .train_on_all = all};
    return std::string(check_first_rows({DatasetFormat::kJsonLines, {write("a.jsonl", text)}}, rules).message());
  };
  EXPECT_EQ(
      check(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "score": NaN})"),
      "");
  const std::string question = R"({"messages": [{"role": "user", "content": "q"}]})";
  EXPECT_THAT(check(question), HasSubstr("no message has the role \"assistant\""));
  EXPECT_EQ(check(question, true), "");
  EXPECT_THAT(check(R"({"messages": [{"from": "human", "value": "q"}]})"), HasSubstr("ShareGPT's form"));
  EXPECT_THAT(check(R"({"conversations": [{"from": "human", "value": "q"}]})"),
              AllOf(HasSubstr("no \"messages\""), HasSubstr("ShareGPT")));
}

// A file that is one line of many megabytes is not read to the end.
TEST_F(FirstRowsTest, LongLinesAreJudgedByTheirBeginning) {
  const std::string filler(20 << 20, 'x');
  const auto check = [&](const std::string& begin) {
    return std::string(check_first_rows({DatasetFormat::kJsonLines, {write("a.jsonl", begin + filler)}}, {}).message());
  };
  EXPECT_EQ(check("{\"text\": \""), "");
  EXPECT_THAT(check("[{\"text\": \""), HasSubstr("an array"));
  EXPECT_THAT(check("PAR1"), HasSubstr("Parquet"));
}

}  // namespace
}  // namespace titan::data_files
