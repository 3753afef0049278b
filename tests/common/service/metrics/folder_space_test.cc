#include "common/service/metrics/folder_space.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"

namespace titan::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FolderSpaceTest : public ::testing::Test {
 protected:
  std::string page() const { return prometheus::TextSerializer().Serialize(space_.Collect()); }

  FakeClock clock_;
  FolderSpace space_{{{"node", "n1"}}, clock_};
  const std::string here_ = std::filesystem::temp_directory_path().string();
};

TEST_F(FolderSpaceTest, ShowsSpaceOfExistingFolders) {
  EXPECT_EQ(page(), "");
  space_.look("dump", {here_, here_ + "/no-such-folder"});
  EXPECT_THAT(page(), HasSubstr("titan_folder_free_bytes{folder=\"" + here_ + "\",kind=\"dump\",node=\"n1\"} "));
  EXPECT_THAT(page(), Not(HasSubstr("no-such-folder")));
  ASSERT_EQ(space_.Collect().size(), 2u);
  struct statvfs disk {};
  ASSERT_EQ(statvfs(here_.c_str(), &disk), 0);
  const auto size = static_cast<double>(disk.f_frsize) * static_cast<double>(disk.f_blocks);
  EXPECT_EQ(space_.Collect()[1].metric[0].gauge.value, size);
  const double free = space_.Collect()[0].metric[0].gauge.value;
  EXPECT_GT(free, 0);
  EXPECT_LE(free, size);
}

// The thread that measures may hang on the storage, so old values are dropped.
TEST_F(FolderSpaceTest, ForgetsOldValues) {
  space_.look("state", {here_});
  clock_.advance(absl::Seconds(59));
  EXPECT_NE(page(), "");
  clock_.advance(absl::Seconds(2));
  EXPECT_EQ(page(), "");
}

TEST_F(FolderSpaceTest, RemovesFoldersThatAreNoLongerChecked) {
  space_.look("state", {here_});
  space_.look("dump", {"/"});
  space_.look("dump", {});
  EXPECT_THAT(page(), HasSubstr("kind=\"state\""));
  EXPECT_THAT(page(), Not(HasSubstr("kind=\"dump\"")));
}

// An alert on full disks must not end because the folder is gone.
TEST_F(FolderSpaceTest, DeletedStateFolderHasNoSpaceLeft) {
  const std::string gone = here_ + absl::StrCat("/titan-space-", getpid());
  std::filesystem::create_directory(gone);
  space_.look("state", {gone});
  const double size = space_.Collect()[1].metric[0].gauge.value;
  ASSERT_GT(space_.Collect()[0].metric[0].gauge.value, 0);
  std::filesystem::remove(gone);
  space_.look("state", {gone});
  ASSERT_EQ(space_.Collect().size(), 2u);
  EXPECT_EQ(space_.Collect()[0].metric[0].gauge.value, 0);
  EXPECT_EQ(space_.Collect()[1].metric[0].gauge.value, size);
  const LocalFolderSpace own("state", gone);
  ASSERT_EQ(own.Collect().size(), 2u);
  EXPECT_EQ(own.Collect()[0].metric[0].gauge.value, 0);
  EXPECT_GT(own.Collect()[1].metric[0].gauge.value, 0);
}

}  // namespace
}  // namespace titan::metrics
