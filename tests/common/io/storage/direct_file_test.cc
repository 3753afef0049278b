// Files that are written past the page cache, several blocks at once, hold what was appended or report an error.

#include "common/io/storage/direct_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "common/io/storage/file.h"

namespace titan::storage {
namespace {

class DirectFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = join_path(::testing::TempDir(), "direct." + std::to_string(::getpid()) + "." +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(posix_files().make_folders(folder_).ok());
  }
  void TearDown() override { posix_files().remove_folder(folder_).IgnoreError(); }

  std::string folder_;
};

// Pseudo-random bytes, so that a misplaced block does not go unnoticed.
std::string numbers(int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>((i * 2654435761u) >> 13);
  return text;
}

absl::Status write_in_parts(const std::string& path, const std::string& text, size_t part, int64_t promised) {
  auto file = create_large(posix_files(), path, promised);
  if (!file.ok()) return file.status();
  for (size_t at = 0; at < text.size(); at += part) {
    if (absl::Status status = (*file)->append(std::string_view(text).substr(at, part)); !status.ok()) return status;
  }
  if (absl::Status status = (*file)->sync(); !status.ok()) return status;
  return (*file)->close();
}

TEST_F(DirectFileTest, HoldsAppendedBytesOfAnyPartSize) {
  const std::string all = numbers(6 * kDirectBufferBytes + 4097);
  int number = 0;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4096}, kDirectBufferBytes, kDirectBufferBytes + 1,
                              5 * kDirectBufferBytes - 1, 6 * kDirectBufferBytes + 4097}) {
    for (const size_t part : {size_t{100'003}, size_t{9} << 20}) {
      const std::string path = join_path(folder_, std::to_string(number++)), text = all.substr(0, bytes);
      // The promised size is only an estimate.
      ASSERT_TRUE(write_in_parts(path, text, part, kLargeBytes).ok());
      EXPECT_TRUE(read_file(posix_files(), path).value() == text) << bytes << " bytes in parts of " << part;
    }
  }
}

TEST_F(DirectFileTest, FallsBackWithoutDirectWrites) {
  const std::string path = "/dev/shm/titan-direct-file-test-" + std::to_string(getpid());
  const std::string text = numbers(2 * kDirectBufferBytes + 5);
  const absl::Status written = write_in_parts(path, text, 1 << 20, kLargeBytes);
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_TRUE(read_file(posix_files(), path).value_or("") == text);
  std::filesystem::remove(path);
}

TEST_F(DirectFileTest, NeverTouchesAnExistingFile) {
  const std::string path = join_path(folder_, "taken");
  ASSERT_TRUE(atomic_write(posix_files(), path, "mine").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(create_large(posix_files(), path, kLargeBytes).status()));
  EXPECT_EQ(read_file(posix_files(), path).value(), "mine");
}

// A size beyond any disk is rejected before anything is written, and no file remains.
TEST_F(DirectFileTest, MissingSpaceIsReportedAtOnce) {
  const std::string path = join_path(folder_, "huge");
  const auto file = create_large(posix_files(), path, int64_t{1} << 56);
  if (file.ok()) GTEST_SKIP() << folder_ << " is not on a file system with direct writes";
  EXPECT_TRUE(absl::IsResourceExhausted(file.status())) << file.status();
  EXPECT_NE(file.status().message().find(path), std::string::npos);
  EXPECT_FALSE(posix_files().exists(path));
}

// A write that fails after append() returned is reported by sync() at the latest, and by every later call.
TEST_F(DirectFileTest, FailedWriteOnAnotherThreadIsReported) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{static_cast<rlim_t>(kDirectBufferBytes + 4096), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string path = join_path(folder_, "file");
  auto file = create_large(posix_files(), path, kLargeBytes);
  const std::string text = numbers(2 * kDirectBufferBytes);
  const absl::Status appended = file.ok() ? (*file)->append(text) : file.status();
  const absl::Status sync_status = appended.ok() ? (*file)->sync() : appended;
  const absl::Status again = file.ok() ? (*file)->append(text) : file.status();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(sync_status.ok());
  EXPECT_NE(sync_status.message().find("write " + path), std::string::npos) << sync_status;
  EXPECT_FALSE(again.ok());
}

}  // namespace
}  // namespace titan::storage
