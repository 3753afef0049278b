#include "common/io/storage/real_path.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::storage {
namespace {

namespace fs = std::filesystem;

// Permissions depend on where a path leads, not on its spelling.
TEST(RealPathTest, ResolvesExistingPartsAndKeepsTheRest) {
  const rank_protocol::TempFolder folder;
  const std::string top = fs::canonical(folder.path()).string();
  fs::create_directories(top + "/a/b");
  fs::create_directories(top + "/other");
  fs::create_directory_symlink(top + "/other", top + "/a/link");
  EXPECT_EQ(real_path(top + "/a/b").value(), top + "/a/b");
  EXPECT_EQ(real_path(top + "/a/new/x").value(), top + "/a/new/x");
  EXPECT_EQ(real_path(top + "/a/link/new").value(), top + "/other/new");
  EXPECT_EQ(real_path(top + "/a/link/..").value(), top) << "the parent of where it leads";
  EXPECT_EQ(real_path(top + "/a//b/").value(), top + "/a/b");
  EXPECT_EQ(real_path("/").value(), "/");
  EXPECT_EQ(real_path(top + "/new/../../etc").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(real_path("a").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(real_path("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RealPathTest, BelowComparesWholeNames) {
  const rank_protocol::TempFolder folder;
  const std::string top = fs::canonical(folder.path()).string();
  fs::create_directories(top + "/a");
  fs::create_directory_symlink(top + "/a", top + "/link");
  EXPECT_TRUE(lies_below(top + "/a", {top + "/a"}));
  EXPECT_TRUE(lies_below(top + "/a/x", {"/none", top + "/a/"}));
  EXPECT_TRUE(lies_below(top + "/a/x", {top + "/link"})) << "a folder that is granted by another name";
  EXPECT_FALSE(lies_below(top + "/ab", {top + "/a"}));
  EXPECT_FALSE(lies_below(top, {top + "/a"}));
  EXPECT_FALSE(lies_below(top, {}));
  EXPECT_TRUE(lies_below(top, {"/"}));
}

}  // namespace
}  // namespace titan::storage
