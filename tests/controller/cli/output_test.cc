#include "controller/cli/output.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"
#include "controller/cli/job_text.h"
#include "controller/cli/list.h"
#include "controller/cli/terminal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "yaml-cpp/yaml.h"

namespace titan::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string printed(const nlohmann::ordered_json& document, OutputFormat format) {
  ::testing::internal::CaptureStdout();
  print(document, format);
  return ::testing::internal::GetCapturedStdout();
}

// Titles and messages of ranks are foreign text: they must not control the terminal or add rows.
TEST(OutputTest, ForeignTextStaysInItsCell) {
  v1::Job job;
  job.set_name("projects/p/jobs/a");
  job.set_title(
      "fine\nprojects/p/jobs/b \033[2J\xC2\x9B"
      "2J");
  job.set_failure_message("first\nuid           forged\033[31m");
  job.set_failure_reason("RANK_FAILED");
  job.add_attempts()->set_end_cause("RANK_FAILED");
  job.mutable_attempts(0)->set_end_message("one\ntwo\r");
  v1::Event event;
  event.set_message("a\nb\033c");
  const std::string page = describe_text(job, {event}, {1, 0, "last\033]0;x\x07\n\tline\n"});
  EXPECT_THAT(page, AllOf(HasSubstr("title         fine?projects/p/jobs/b ?[2J?2J\n"),
                          HasSubstr("RANK_FAILED: first\n              uid           forged?[31m\n"),
                          HasSubstr("one\n       two?\n"), HasSubstr("a\n       b?c\n"),
                          HasSubstr("  last?]0;x?\n  \tline\n"), Not(HasSubstr("\033"))));
  job.clear_failure_reason();
  const std::string table = list_text({job});
  EXPECT_THAT(table, HasSubstr("fine?projects/p/jobs/b ?[2J?2J\n"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2);
  EXPECT_EQ(nlohmann::json::parse(printed({{"title", job.title()}}, OutputFormat::kJson))["title"], job.title());
}

// A program gets one document: a list if it requested several jobs, even if only one or none is left.
TEST(OutputTest, SeveralDocumentsAreOneList) {
  const nlohmann::ordered_json a = {{"name", "a"}}, b = {{"name", "b"}};
  const auto each = [](const std::vector<nlohmann::ordered_json>& done, bool is_list, OutputFormat format) {
    ::testing::internal::CaptureStdout();
    print_each(done, is_list, format);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(each({a}, false, OutputFormat::kJson), printed(a, OutputFormat::kJson));
  EXPECT_EQ(nlohmann::json::parse(each({a, b}, true, OutputFormat::kJson)), nlohmann::json::array({a, b}));
  EXPECT_EQ(nlohmann::json::parse(each({b}, true, OutputFormat::kJson)), nlohmann::json::array({b}))
      << "the other one failed";
  EXPECT_EQ(nlohmann::json::parse(each({}, true, OutputFormat::kJson)), nlohmann::json::array());
  EXPECT_EQ(each({}, false, OutputFormat::kJson), "");
  const std::vector<YAML::Node> documents = YAML::LoadAll(each({a, b}, true, OutputFormat::kYaml));
  ASSERT_EQ(documents.size(), 1u);
  ASSERT_TRUE(documents[0].IsSequence());
  EXPECT_EQ(documents[0][1]["name"].as<std::string>(), "b");
  EXPECT_EQ(each({a, b}, true, OutputFormat::kTable), "");
}

TEST(OutputTest, ErrorsAndWarningsEscapeControlCharacters) {
  ::testing::internal::CaptureStderr();
  report(absl::AbortedError("first\nsecond\033[2J"));
  warn("careful\033[2J");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "titanctl: first\nsecond?[2J\ntitanctl: warning: careful?[2J\n");
}

// A YAML reader gets any text back exactly; ordinary ones are blocks that people can read.
TEST(OutputTest, YamlTextsRoundTrip) {
  for (const std::string text : {"",
                                 "a",
                                 "a\n",
                                 "a\nb\n",
                                 "a\n\nb\n",
                                 "a\nb",
                                 "a\n\n",
                                 "\n",
                                 "\na\n",
                                 " a\n b\n",
                                 "\ta\n",
                                 "a\r\nb\r\n",
                                 "a\r",
                                 "a\n b\n",
                                 "# a: [b]\nc: &d\n",
                                 "\033[31m\nx\n",
                                 "- a\n---\nb\n",
                                 "true",
                                 "1",
                                 "\xC3\xA4\n\xE2\x82\xAC\n",
                                 "a \n\tb\n"}) {
    const std::string yaml = printed({{"text", text}, {"after", {{"text", text}}}}, OutputFormat::kYaml);
    const YAML::Node read = YAML::Load(yaml);
    EXPECT_EQ(read["text"].as<std::string>(), text) << yaml;
    EXPECT_EQ(read["after"]["text"].as<std::string>(), text) << yaml;
  }
  EXPECT_THAT(printed({{"text", "a\n b\n"}}, OutputFormat::kYaml), HasSubstr("text: |\n  a\n   b\n"));
  EXPECT_THAT(printed({{"text", "a\r\n"}}, OutputFormat::kYaml), HasSubstr(R"(text: "a\r\n")"));
}

// Exit code 3 means that the controller did not find something; a missing local file is a wrong argument.
TEST(OutputTest, OnlyControllerErrorsExitAsNotFound) {
  const absl::Status remote = rpc::error(absl::StatusCode::kNotFound, "JOB_NOT_FOUND", "no job a");
  const absl::Status local = absl::NotFoundError("read --token-file /t: No such file or directory");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(report(remote), kExitNotFound);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), AllOf(HasSubstr("titanctl list"), Not(HasSubstr("node list"))));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(report(rpc::error(absl::StatusCode::kNotFound, "ATTEMPT_NOT_FOUND", "job a has 1 attempt, not 99",
                              {{"job", "projects/default/jobs/a"}})),
            kExitNotFound);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("`titanctl describe a` shows its attempts"));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(report(local), kExitUsage);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("titanctl list")));
}

}  // namespace
}  // namespace titan::cli
