#include "controller/auth/audit.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace titan::auth {
namespace {

class AuditTest : public ::testing::Test {
 protected:
  ~AuditTest() override { std::filesystem::remove_all(folder_); }

  static AuditEntry entry(const std::string& resource) {
    return {absl::FromUnixMillis(1'700'000'000'123),
            "user:alice",
            "10.0.0.7",
            "JobService.CancelJob",
            resource,
            "r1",
            "OK"};
  }
  std::vector<std::string> lines(const std::string& path) const {
    std::ifstream file(path);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }

  static std::string make_folder() {
    std::string folder = ::testing::TempDir() + "titan-audit-XXXXXX";
    return mkdtemp(folder.data());
  }

  const std::string folder_ = make_folder();
  const std::string path_ = folder_ + "/audit.jsonl";
};

TEST_F(AuditTest, LineNamesActorMethodAndResult) {
  EXPECT_EQ(
      to_line(entry("projects/vision/jobs/a")),
      R"({"time":"2023-11-14T22:13:20.123Z","actor":"user:alice","peer":"10.0.0.7","method":"JobService.CancelJob",)"
      R"("resource":"projects/vision/jobs/a","request_id":"r1","result":"OK"})");
}

// Values that callers choose stay on one short line of JSON.
TEST_F(AuditTest, CallersCannotForgeLines) {
  const std::string line = to_line(entry("a\"}\n{\"actor\":\"root\"\xff" + std::string(100'000, 'x')));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_LT(line.size(), 1000U);
  EXPECT_EQ(nlohmann::json::parse(line)["actor"], "user:alice");
}

TEST_F(AuditTest, IsPrivateAndAppendsAfterARestart) {
  for (int i = 0; i < 2; ++i) (*Audit::open(path_, {}))->write(entry("a"));
  struct stat about {};
  ASSERT_EQ(stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600U);
  EXPECT_EQ(lines(path_).size(), 2U);
}

// With any number of writers, lines stay whole and none is lost except with the oldest file.
TEST_F(AuditTest, IsRotatedBySize) {
  const int64_t one = static_cast<int64_t>(to_line(entry("0000")).size()) + 1;
  {
    const auto audit = *Audit::open(path_, {10 * one, 3});
    std::vector<std::thread> writers;
    for (int w = 0; w < 4; ++w) {
      writers.emplace_back([&audit, w] {
        for (int i = 0; i < 10; ++i) audit->write(entry(absl::StrCat(1000 + w * 10 + i)));
      });
    }
    for (std::thread& writer : writers) writer.join();
  }
  for (const char* file : {"", ".1", ".2"}) {
    const std::vector<std::string> all = lines(path_ + file);
    EXPECT_EQ(all.size(), 10U) << file;
    for (const std::string& line : all) EXPECT_EQ(nlohmann::json::parse(line)["result"], "OK");
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + ".3"));
}

class RecordingJournal : public journal::Journal {
 public:
  void write(const journal::Line& line) override { lines.push_back(journal::format(line)); }
  std::vector<std::string> lines;
};

// A failed write does not fail the call, and each outage is reported once in the journal.
TEST_F(AuditTest, FailedWritesAreJournaledOnce) {
  const auto recorder = std::make_shared<RecordingJournal>();
  const auto audit = *Audit::open(path_, {1, 2}, recorder);  // Each line needs a new file.
  for (const size_t times : {1U, 2U}) {
    std::filesystem::remove_all(folder_);
    for (int i = 0; i < 3; ++i) audit->write(entry("a"));
    ASSERT_EQ(recorder->lines.size(), times);
    EXPECT_EQ(recorder->lines.back().rfind("event=AuditNotWritten message=", 0), 0U) << recorder->lines.back();
    std::filesystem::create_directory(folder_);
    audit->write(entry("b"));
    EXPECT_EQ(recorder->lines.size(), times);
    EXPECT_EQ(lines(path_).size(), 1U) << "writing resumes by itself";
  }
}

TEST_F(AuditTest, SymbolicLinksAreNotFollowed) {
  std::filesystem::create_symlink(folder_ + "/elsewhere", path_);
  EXPECT_FALSE(Audit::open(path_, {}).ok());
  EXPECT_FALSE(Audit::open(folder_ + "/none/audit.jsonl", {}).ok());
}

}  // namespace
}  // namespace titan::auth
