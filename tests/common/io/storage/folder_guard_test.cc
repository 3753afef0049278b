// Checks of a state folder that was deleted, replaced, filled or made read-only while its owner runs.

#include "common/io/storage/folder_guard.h"

#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FolderGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    above_ = (fs::temp_directory_path() / "titan-guard-XXXXXX").string();
    ASSERT_NE(::mkdtemp(above_.data()), nullptr);
    folder_ = above_ + "/state";
    make();
  }
  void TearDown() override {
    ::umount(folder_.c_str());
    fs::remove_all(above_);
  }
  void make() const {
    fs::create_directory(folder_);
    std::ofstream(folder_ + "/db") << "x";
  }

  std::string above_, folder_;
};

TEST_F(FolderGuardTest, UnchangedFolderIsTheSame) {
  const FolderGuard guard = FolderGuard::open(folder_, {"db", "none"}).value();
  EXPECT_TRUE(guard.check_same().ok());
  std::ofstream(folder_ + "/db") << "other bytes in the same file";
  std::ofstream(folder_ + "/none") << "was not there, and is not watched";
  EXPECT_TRUE(guard.check_same().ok());
  EXPECT_TRUE(guard.check_writable(1).ok());
  EXPECT_TRUE(guard.check_writable(1).ok()) << "again";
  EXPECT_EQ(FolderGuard::open(above_ + "/nothing", {}).status().code(), absl::StatusCode::kNotFound);
}

// A user who can write to the folder must not be able to redirect the guard's writes.
TEST_F(FolderGuardTest, NoLinkIsFollowed) {
  const FolderGuard guard = FolderGuard::open(folder_, {}).value();
  fs::create_symlink(folder_ + "/db", folder_ + "/.probe");
  EXPECT_FALSE(guard.check_writable(1).ok());
  EXPECT_EQ(fs::file_size(folder_ + "/db"), 1u);
}

TEST_F(FolderGuardTest, DeletedReplacedOrMovedFolderIsDetected) {
  const auto reason = [](const FolderGuard& guard) {
    const absl::Status status = guard.check_same();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  const FolderGuard guard = FolderGuard::open(folder_, {"db"}).value();
  fs::rename(folder_ + "/db", folder_ + "/moved");
  EXPECT_THAT(reason(guard), HasSubstr("/state/db was deleted"));
  std::ofstream(folder_ + "/db") << "x";
  EXPECT_THAT(reason(guard), HasSubstr("/state/db was replaced"));
  fs::rename(folder_ + "/moved", folder_ + "/db");
  EXPECT_TRUE(guard.check_same().ok()) << "moved back";
  fs::rename(folder_, above_ + "/away");
  EXPECT_THAT(reason(guard), HasSubstr("/state was deleted or moved away"));
  make();
  EXPECT_THAT(reason(guard), HasSubstr("/state was replaced"));
}

// A full or read-only disk is reported, and a mount over the folder makes it another folder, without the written state.
TEST_F(FolderGuardTest, AFullOrReadOnlyDiskTakesNoWrites) {
  const FolderGuard before = FolderGuard::open(folder_, {}).value();
  EXPECT_EQ(before.check_writable(int64_t{1} << 60).code(), absl::StatusCode::kResourceExhausted);
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=1m,nr_inodes=20") != 0) GTEST_SKIP() << "no tmpfs here";
  EXPECT_EQ(before.check_same().code(), absl::StatusCode::kFailedPrecondition);
  const FolderGuard guard = FolderGuard::open(folder_, {}).value();
  EXPECT_TRUE(guard.check_writable(1 << 19).ok());
  std::ofstream(folder_ + "/fill") << std::string(1 << 20, 'x');
  EXPECT_EQ(guard.check_writable(1).code(), absl::StatusCode::kResourceExhausted);
  fs::remove(folder_ + "/fill");
  EXPECT_TRUE(guard.check_writable(1).ok());
  for (int i = 0; i < 20; ++i) std::ofstream(absl::StrCat(folder_, "/", i));
  const absl::Status no_inode = guard.check_writable(1);
  EXPECT_EQ(no_inode.code(), absl::StatusCode::kResourceExhausted) << no_inode;
  ASSERT_EQ(::mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_THAT(std::string(guard.check_writable(1).message()), HasSubstr("Read-only file system"));
}

}  // namespace
}  // namespace titan::storage
