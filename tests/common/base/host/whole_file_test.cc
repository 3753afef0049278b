// Small files are replaced as a whole, in folders where others may write too.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::host {
namespace {

using ::testing::HasSubstr;

class WholeFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "titan-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/token";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_, path_;
};

TEST_F(WholeFileTest, ReplacesTheWholeFile) {
  ASSERT_TRUE(replace_file(path_, "the first, which is longer").ok());
  ASSERT_TRUE(replace_file(path_, "the second").ok());
  EXPECT_EQ(read_file(path_).value(), "the second");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

// Anyone who may write to the folder could otherwise block a daemon's thread or redirect its write.
TEST_F(WholeFileTest, FollowsNeitherPipeNorLink) {
  ASSERT_EQ(::mkfifo((path_ + ".new").c_str(), 0600), 0);
  EXPECT_FALSE(replace_file(path_, "x").ok());
  const int reader = ::open((path_ + ".new").c_str(), O_RDONLY | O_NONBLOCK);
  const absl::Status read_by_them = replace_file(path_, "x");
  EXPECT_THAT(std::string(read_by_them.message()), HasSubstr("is not a regular file"));
  ::close(reader);
  std::filesystem::remove(path_ + ".new");
  std::filesystem::create_symlink(folder_ + "/elsewhere", path_ + ".new");
  EXPECT_FALSE(replace_file(path_, "x").ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
}

}  // namespace
}  // namespace titan::host
