// The submitting user's umask decides the mode of a job's files, even inside a daemon with many threads.

#include "common/base/host/file_mask.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace titan::host {
namespace {

mode_t mode_of_a_new_file() {
  const std::string path = testing::TempDir() + "file_mask." + std::to_string(::gettid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
  struct stat file {};
  EXPECT_EQ(::fstat(fd, &file), 0);
  ::close(fd);
  ::unlink(path.c_str());
  return file.st_mode & 0777;
}

TEST(FileMaskTest, ParsesOctalMasksThatKeepOwnerAccess) {
  EXPECT_EQ(parse_umask("022"), mode_t{022});
  EXPECT_EQ(parse_umask("2"), mode_t{2});
  EXPECT_EQ(parse_umask("0077"), mode_t{077});
  EXPECT_EQ(parse_umask("0"), mode_t{0});
  for (const char* bad : {"", "8", "rw", "-2", "0x2", "00022", "700", "777", " 22", "022 "}) {
    EXPECT_EQ(parse_umask(bad), std::nullopt) << bad;
  }
}

TEST(FileMaskTest, ReadsTheProcessUmask) {
  const mode_t before = ::umask(027);
  EXPECT_EQ(current_umask().value(), mode_t{027});
  ::umask(before);
  EXPECT_EQ(current_umask().value(), before);
}

// A mask applies to its own thread only, and ends with its scope.
TEST(FileMaskTest, AppliesToItsThreadAndScope) {
  const mode_t before = ::umask(022);
  std::thread([] {
    {
      const FileMask mask(002);
      EXPECT_EQ(mode_of_a_new_file(), mode_t{0664});
      std::thread([] {
        EXPECT_EQ(mode_of_a_new_file(), mode_t{0664}) << "a thread inherits its parent's mask";
      }).join();
    }
    EXPECT_EQ(mode_of_a_new_file(), mode_t{0644});
    const FileMask private_files(077);
    EXPECT_EQ(mode_of_a_new_file(), mode_t{0600});
    const FileMask none(std::nullopt);
    EXPECT_EQ(mode_of_a_new_file(), mode_t{0600});
  }).join();
  EXPECT_EQ(mode_of_a_new_file(), mode_t{0644});
  ::umask(before);
}

}  // namespace
}  // namespace titan::host
