// Control groups through their files; version 2 in a stand-in for its file system.

#include "worker/node/shim/control_group.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::shim {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RankGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write("cgroup.controllers", "memory pids");
    add_group("/unit");
    add_group("/unit/leaf");
    if (::setxattr(at("/unit").c_str(), "user.delegate", "1", 1, 0) != 0) GTEST_SKIP() << "no attributes here";
  }
  std::string at(const std::string& path) const { return folder_.path() + path; }
  void write(const std::string& path, const std::string& text) const { std::ofstream(at("/" + path)) << text; }
  std::string read(const std::string& path) const { return host::read_file(at(path)).value_or("?"); }
  // The kernel creates these files with a group.
  void add_group(const std::string& path) const {
    fs::create_directories(at(path));
    for (const char* file :
         {"cgroup.procs", "cgroup.subtree_control", "memory.max", "memory.swap.max", "memory.events"})
      write(absl::StrCat(path, "/", file), "");
  }
  absl::StatusOr<GroupHome> home(const std::string& own, bool is_service = false) {
    write("self", own + "\n");
    return find_group_home({at("/self"), folder_.path(), is_service});
  }

  rank_protocol::TempFolder folder_;
};

TEST_F(RankGroupTest, AServiceInALeafUsesTheGroupAboveIt) {
  const auto found = home("0::/unit/leaf", /*is_service=*/true);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, at("/unit"));
  EXPECT_TRUE(found->unified);
  EXPECT_EQ(read("/unit/cgroup.subtree_control"), "+memory +pids");
  EXPECT_EQ(read("/unit/cgroup.procs"), "") << "the daemon stays in its group";
}

// systemd could not restart the service in a group that has child groups.
TEST_F(RankGroupTest, AServiceWithoutALeafHasNone) {
  const auto found = home("0::/unit", /*is_service=*/true);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("DelegateSubgroup"));
  EXPECT_EQ(read("/unit/cgroup.subtree_control"), "");
}

TEST_F(RankGroupTest, DelegatedGroupMovesTheDaemonToALeaf) {
  add_group("/unit/titan-worker");
  const auto found = home("0::/unit");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, at("/unit"));
  EXPECT_EQ(read("/unit/titan-worker/cgroup.procs"), absl::StrCat(::getpid()));
  EXPECT_EQ(read("/unit/cgroup.subtree_control"), "+memory +pids");
}

TEST_F(RankGroupTest, UndelegatedGroupIsNotChanged) {
  add_group("/user");
  EXPECT_THAT(std::string(home("0::/user").status().message()), HasSubstr("Delegate=yes"));
  EXPECT_EQ(read("/user/cgroup.subtree_control"), "");
  EXPECT_FALSE(fs::exists(at("/user/titan-worker")));
}

TEST_F(RankGroupTest, AGroupIsLimitedCountedAndEmptied) {
  add_group("/unit/ranks");
  const ControlGroup group = {at("/unit/ranks"), true, 1 << 30};
  ASSERT_TRUE(make_group(group).ok());
  EXPECT_EQ(read("/unit/ranks/memory.max"), "1073741824");
  EXPECT_EQ(read("/unit/ranks/memory.swap.max"), "0");
  write("unit/ranks/memory.events", "low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n");
  EXPECT_EQ(memory_kills(group).value_or(-1), 2);
  write("unit/ranks/cgroup.procs", "12\n345\n");
  EXPECT_THAT(group_processes(group.folder), ::testing::ElementsAre(12, 345));
  ASSERT_EQ(::write(group_entrance(group).get(), "0", 1), 1);
  EXPECT_TRUE(remove_group(at("/unit/none"))) << "there is none";
  EXPECT_FALSE(remove_group(group.folder));
  const ControlGroup again = group_from_json(to_json(group));
  EXPECT_EQ(again.folder, group.folder);
  EXPECT_TRUE(again.unified);
  EXPECT_EQ(again.limit_bytes, group.limit_bytes);
}

TEST_F(RankGroupTest, TheMemoryHierarchyOfVersionOne) {
  fs::remove(at("/cgroup.controllers"));
  fs::create_directories(at("/memory/box"));
  write("memory/box/memory.limit_in_bytes", "");
  write("memory/memory.limit_in_bytes", "");
  EXPECT_EQ(home("5:cpu:/x\n4:memory:/box\n0::/")->folder, at("/memory/box"));
  EXPECT_EQ(home("4:memory:/elsewhere\n0::/")->folder, at("/memory")) << "the path as a container shows it";
  EXPECT_FALSE(home("5:cpu:/x").ok());
}

}  // namespace
}  // namespace titan::shim
