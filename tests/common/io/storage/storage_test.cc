#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>
#include <string>

#include "common/io/storage/crc32c.h"
#include "common/io/storage/faulty_files.h"
#include "common/io/storage/file.h"
#include "common/io/storage/standard_paths.h"

namespace titan::storage {
namespace {

class StorageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = join_path(::testing::TempDir(), "storage." + std::to_string(::getpid()) + "." +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(posix_files().make_folders(folder_).ok());
  }
  void TearDown() override { posix_files().remove_folder(folder_).IgnoreError(); }

  std::string folder_;
};

// A group that shares a folder needs access to its files as well.
TEST_F(StorageTest, FilesFollowTheUmask) {
  const auto mode_of = [&](const std::string& name) {
    struct stat file {};
    EXPECT_EQ(::stat(join_path(folder_, name).c_str(), &file), 0) << name;
    return file.st_mode & 0777;
  };
  const mode_t before = ::umask(002);
  Files& files = posix_files();
  EXPECT_TRUE(files.create(join_path(folder_, "created")).ok());
  EXPECT_TRUE(files.append_to(join_path(folder_, "appended")).ok());
  EXPECT_TRUE(files.touch(join_path(folder_, "touched")).ok());
  EXPECT_TRUE(files.lock(join_path(folder_, "locked"), LockMode::kExclusive, absl::ZeroDuration()).ok());
  EXPECT_TRUE(atomic_write(files, join_path(folder_, "written"), "bytes").ok());
  EXPECT_TRUE(files.make_folders(join_path(folder_, "made/within")).ok());
  ::umask(077);
  EXPECT_TRUE(atomic_write(files, join_path(folder_, "private"), "bytes").ok());
  ::umask(before);
  for (const char* name : {"created", "appended", "touched", "locked", "written"})
    EXPECT_EQ(mode_of(name), 0664u) << name;
  EXPECT_EQ(mode_of("made/within"), 0775u);
  EXPECT_EQ(mode_of("private"), 0600u);
}

// The standard check value and those of RFC 3720 (B.4): with a wrong polynomial or bit order every checkpoint would
// look corrupt.
TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  EXPECT_EQ(crc32c("", 0), 0u);
}

TEST(Crc32cTest, TableAndInstructionAgreeForAllTailsAndSplits) {
  std::mt19937_64 random(7);
  std::string bytes(300, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); ++size) {
      const char* p = bytes.data() + begin;
      const uint32_t whole = crc32c(p, size);
      EXPECT_EQ(whole, crc32c_portable(p, size));
      EXPECT_EQ(whole, crc32c(p + size / 3, size - size / 3, crc32c(p, size / 3)));
    }
  }
}

TEST_F(StorageTest, AtomicWriteReplacesWholeFiles) {
  const std::string path = join_path(folder_, "a.json");
  ASSERT_TRUE(atomic_write(posix_files(), path, "one").ok());
  ASSERT_TRUE(atomic_write(posix_files(), path, "two").ok());
  EXPECT_EQ(*read_file(posix_files(), path), "two");
  EXPECT_THAT(*posix_files().list(folder_), ::testing::ElementsAre("a.json"));
}

// A writer never touches an existing file: an old attempt must not overwrite its successor's shard.
TEST_F(StorageTest, CreateRefusesAnExistingFile) {
  const std::string path = join_path(folder_, "shard");
  ASSERT_TRUE(posix_files().create(path).ok());
  EXPECT_EQ(posix_files().create(path).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(StorageTest, ErrorsNameOperationAndPath) {
  const std::string path = join_path(folder_, "missing");
  const absl::Status status = posix_files().open(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("open " + path));
  EXPECT_EQ(posix_files().open(folder_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StorageTest, OpeningAPipeDoesNotBlock) {
  const std::string path = join_path(folder_, "pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(posix_files().open(path).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(posix_files().open_no_link(path).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(posix_files().touch(path).ok());
  EXPECT_TRUE(posix_files().modified(path).ok());
}

TEST_F(StorageTest, ShortReadIsDataLoss) {
  const std::string path = join_path(folder_, "short");
  ASSERT_TRUE(atomic_write(posix_files(), path, "12345").ok());
  auto file = posix_files().open(path);
  char out[10];
  EXPECT_TRUE((*file)->read(1, 4, out).ok());
  EXPECT_EQ((*file)->read(1, 5, out).code(), absl::StatusCode::kDataLoss);
}

// If the disk fills up midway or any operation fails, the old content stays and no other file remains.
TEST_F(StorageTest, AtomicWriteKeepsTheOldContentAtEveryFailure) {
  const std::string path = join_path(folder_, "a.json");
  ASSERT_TRUE(atomic_write(posix_files(), path, "old").ok());
  int operations = 0;
  FaultyFiles counting([&](const FileOperation&) { return ++operations, Fault{}; });
  ASSERT_TRUE(atomic_write(counting, path, "old").ok());
  // The last operation is the folder's fsync, after the rename.
  for (int failing = 1; failing < operations; ++failing) {
    int seen = 0;
    FaultyFiles full([&](const FileOperation&) {
      return ++seen == failing ? Fault{absl::ResourceExhaustedError("disk full"), 1} : Fault{};
    });
    EXPECT_EQ(atomic_write(full, path, "new").code(), absl::StatusCode::kResourceExhausted) << failing;
    EXPECT_EQ(*read_file(posix_files(), path), "old") << failing;
  }
  EXPECT_THAT(*posix_files().list(folder_), ::testing::ElementsAre("a.json"));
}

TEST_F(StorageTest, LocksExcludeAndEndWithTheirObject) {
  const std::string path = join_path(folder_, "lock");
  EXPECT_EQ(posix_files().try_lock(path, LockMode::kShared).status().code(), absl::StatusCode::kNotFound);
  {
    auto held = posix_files().lock(path, LockMode::kExclusive, absl::Seconds(1));
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(posix_files().try_lock(path, LockMode::kShared).status().code(), absl::StatusCode::kUnavailable);
    const absl::Status late = posix_files().lock(path, LockMode::kShared, absl::Milliseconds(5)).status();
    EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(late.message()), ::testing::HasSubstr("held by another process"));
  }
  auto first = posix_files().try_lock(path, LockMode::kShared);
  auto second = posix_files().try_lock(path, LockMode::kShared);
  EXPECT_TRUE(first.ok() && second.ok());
}

// Root takes locks in folders where a user may place links.
TEST_F(StorageTest, ALockFollowsNoLink) {
  const std::string link = join_path(folder_, "lock"), elsewhere = join_path(folder_, "elsewhere");
  std::filesystem::create_symlink(elsewhere, link);
  EXPECT_FALSE(posix_files().lock(link, LockMode::kExclusive, absl::Seconds(1)).ok());
  EXPECT_FALSE(posix_files().exists(elsewhere));
}

TEST(JoinPathTest, AbsoluteNamesWin) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

// A daemon that is started from another folder must find its state again.
TEST(StateHomeTest, DoesNotDependOnTheWorkingFolder) {
  EXPECT_EQ(state_folder_of(true, "/x", "/root", "controller"), "/var/lib/titan/controller");
  EXPECT_EQ(state_folder_of(false, "/x", "/her", "worker"), "/x/titan/worker");
  EXPECT_EQ(state_folder_of(false, "relative", "/her", "worker"), "/her/.local/state/titan/worker");
  EXPECT_EQ(state_folder_of(false, "", "", "worker"), "");
}

}  // namespace
}  // namespace titan::storage
