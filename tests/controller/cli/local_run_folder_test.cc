#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "controller/cli/local_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "run_folder_test-XXXXXX").string();
    base_ = mkdtemp(pattern.data());
  }
  ~RunFolderTest() override { fs::remove_all(base_); }

  // Makes a folder with a file that was last written `ago` before now.
  std::string old(const std::string& name, absl::Duration ago, const std::string& file = "worker.log") {
    std::string folder = base_ + "/" + name;
    fs::create_directories(folder);
    std::ofstream(folder + "/" + file) << "x";
    age(folder, ago);
    return folder;
  }
  static void age(const std::string& folder, absl::Duration ago) {
    const timespec then = absl::ToTimespec(absl::Now() - ago);
    const timespec times[] = {then, then};
    for (const auto& entry : fs::directory_iterator(folder)) utimensat(AT_FDCWD, entry.path().c_str(), times, 0);
    utimensat(AT_FDCWD, folder.c_str(), times, 0);
  }

  std::string base_;
};

// Failed runs leave logs that are deleted later; folders that are in use, kept on request or foreign stay.
TEST_F(RunFolderTest, OldFoldersAreDeleted) {
  const auto live = RunFolder::make(base_);
  ASSERT_TRUE(live.ok()) << live.status();
  age((*live)->path(), absl::Hours(100));
  for (int i = 1; i <= 7; ++i) old("run-" + std::to_string(i), absl::Hours(30 + i));
  const std::string kept = old("run-kept", absl::Hours(90), "keep");
  const std::string foreign = old("notes", absl::Hours(90));
  clean_run_folders(base_, absl::Now());
  EXPECT_TRUE(fs::exists((*live)->path())) << "a live run stays, whatever its age";
  for (int i = 1; i <= 5; ++i) EXPECT_TRUE(fs::exists(base_ + "/run-" + std::to_string(i))) << "the newest few stay";
  for (int i = 6; i <= 7; ++i) EXPECT_FALSE(fs::exists(base_ + "/run-" + std::to_string(i)));
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(RunFolderTest, RecentFoldersStay) {
  for (int i = 1; i <= 9; ++i) old("run-" + std::to_string(i), absl::Hours(1));
  clean_run_folders(base_, absl::Now());
  EXPECT_EQ(std::distance(fs::directory_iterator(base_), fs::directory_iterator()), 9);
  clean_run_folders(base_ + "/nowhere", absl::Now());  // On a first run the folder does not exist.
}

// A script that always fails must not fill the disk.
TEST_F(RunFolderTest, NumberOfFoldersIsLimited) {
  for (int i = 1; i <= 24; ++i) old("run-" + std::to_string(i), absl::Minutes(i));
  clean_run_folders(base_, absl::Now());
  EXPECT_EQ(std::distance(fs::directory_iterator(base_), fs::directory_iterator()), kMaxRunFolders);
  EXPECT_TRUE(fs::exists(base_ + "/run-1"));
  EXPECT_FALSE(fs::exists(base_ + "/run-24"));
}

TEST_F(RunFolderTest, FindsTheLogsOfTheLastAttempt) {
  const auto folder = RunFolder::make(base_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->rank_logs(), "");
  for (const char* attempt : {"1", "2"}) {
    const std::string run = (*folder)->path() + "/worker/runs/uid/" + attempt;
    fs::create_directories(run);
    std::ofstream(run + "/rank-0.log") << "x";
  }
  age((*folder)->path() + "/worker/runs/uid/1", absl::Hours(1));
  EXPECT_EQ((*folder)->rank_logs(), (*folder)->path() + "/worker/runs/uid/2");
}

// Service users have no home, or one that does not exist; a folder shared by all of them would belong to the first.
TEST_F(RunFolderTest, UserWithoutAHomeGetsASeparateFolder) {
  std::ofstream(base_ + "/file") << "x";
  setenv("TMPDIR", base_.c_str(), 1);
  const std::string own_folder = base_ + "/titan-" + std::to_string(getuid());
  const auto base_with = [](const char* name, const std::string& value) {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    if (name != nullptr) setenv(name, value.c_str(), 1);
    return run_base().value();
  };
  EXPECT_EQ(base_with("XDG_CACHE_HOME", base_), base_ + "/titan");
  EXPECT_EQ(base_with("HOME", base_), base_ + "/.cache/titan");
  EXPECT_EQ(base_with("HOME", base_ + "/file"), own_folder);
  EXPECT_EQ(base_with(nullptr, ""), own_folder);
  unsetenv("TMPDIR");
}

// In a shared temporary folder, another user could create the folder first and answer instead of the run's controller.
TEST_F(RunFolderTest, ForeignOrUnsafeFoldersAreRefused) {
  setenv("TMPDIR", base_.c_str(), 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  const std::string own_folder = base_ + "/titan-" + std::to_string(getuid());
  const auto refused = [](const char* what) {
    const auto base = run_base();
    EXPECT_EQ(base.status().code(), absl::StatusCode::kPermissionDenied) << what;
    EXPECT_THAT(std::string(base.status().message()), ::testing::HasSubstr("XDG_CACHE_HOME")) << what;
  };
  fs::create_directory(own_folder);
  ASSERT_EQ(chmod(own_folder.c_str(), 0777), 0);
  refused("writable for all");
  ASSERT_EQ(chmod(own_folder.c_str(), 0755), 0);
  EXPECT_EQ(run_base().value(), own_folder);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(own_folder.c_str(), 65534, 65534), 0);
    refused("another user's");
  }
  fs::remove(own_folder);
  fs::create_directory(base_ + "/theirs");
  fs::create_directory_symlink(base_ + "/theirs", own_folder);
  refused("a link");
  unsetenv("TMPDIR");
}

TEST_F(RunFolderTest, FailureToCreateTheBaseNamesXdgCacheHome) {
  std::ofstream(base_ + "/file") << "x";
  const auto folder = RunFolder::make(base_ + "/file/titan");
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(folder.status().message(), ::testing::HasSubstr("XDG_CACHE_HOME"));
}

}  // namespace
}  // namespace titan::cli
