#include "worker/node/daemon/granted_folders.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/worker/node/shim/run_folder.h"
#include "worker/node/daemon/prepare_files.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class GrantedFoldersTest : public ::testing::Test {
 protected:
  GrantedFoldersTest() {
    for (const char* name : {"/granted", "/granted/own", "/plugins", "/outside"}) fs::create_directories(top_ + name);
    fs::create_directory_symlink(top_ + "/outside", top_ + "/granted/link");
  }
  node::Refusal check(const std::string& dump, const std::string& library, const Grants& grants) const {
    node::AttemptRecord record;
    record.dump_folder = top_ + dump;
    return check_folders(record, {{"experimental", {{"custom_import", library.empty() ? "" : top_ + library}}}},
                         grants);
  }

  const rank_protocol::TempFolder folder_;
  const std::string top_ = fs::canonical(folder_.path()).string();
  const Grants work_ = {.folders = {top_ + "/granted"}};
};

TEST_F(GrantedFoldersTest, WithoutGrantsEveryFolderIsAllowed) { EXPECT_FALSE(check("/outside", "/outside/x.so", {})); }

TEST_F(GrantedFoldersTest, DumpFoldersLieBelowAGrantedFolder) {
  EXPECT_FALSE(check("/granted/own", "", work_));
  EXPECT_FALSE(check("/granted/own/new/x", "", work_));
  for (const char* dump : {"/outside", "/grantedtoo", "/granted/../outside", "/granted/link", "/granted/link/new"}) {
    const node::Refusal refusal = check(dump, "", work_);
    EXPECT_EQ(refusal.reason, kNotAllowed) << dump;
    EXPECT_THAT(refusal.message, HasSubstr(top_ + "/granted"));
    EXPECT_THAT(refusal.message, HasSubstr("--allow-folder"));
  }
}

TEST_F(GrantedFoldersTest, LibrariesLieBelowPluginFolders) {
  EXPECT_FALSE(check("/granted", "/granted/x.so", work_));
  EXPECT_EQ(check("/granted", "/outside/x.so", work_).reason, kNotAllowed);
  const Grants both = {.folders = {top_ + "/granted"}, .plugin_folders = {top_ + "/plugins"}};
  EXPECT_FALSE(check("/granted", "/plugins/x.so", both));
  EXPECT_EQ(check("/granted", "/granted/x.so", both).reason, kNotAllowed);
  const Grants shared = {.one_user = true};
  EXPECT_THAT(check("/granted", "/granted/x.so", shared).message, HasSubstr("grants to jobs: none"));
  EXPECT_FALSE(check("/granted", "", shared));
}

// Nothing is created outside granted folders, and ranks learn where libraries may be.
TEST_F(GrantedFoldersTest, PreparationStaysInsideGrantedFolders) {
  const StateFolder state = StateFolder::open(folder_.file("state")).value();
  node::AttemptRecord record;
  record.leader = true;
  record.ranks = {0};
  record.token = "t";
  record.run_as = "root";  // Only used when root runs the test.
  record.run_as_local = true;
  const auto prepare = [&](const std::string& dump, int attempt) {
    record.key = {"u1", attempt};
    record.dump_folder = top_ + dump;
    EXPECT_TRUE(state.add(record).ok());
    return prepare_as(state, record, shim::fake_launch(1, {}, attempt).dump(), shim::Spec{}, "", "", work_, "").refusal;
  };
  EXPECT_EQ(prepare("/granted/link/new", 1).reason, kNotAllowed);
  EXPECT_TRUE(fs::is_empty(top_ + "/outside"));
  EXPECT_FALSE(prepare("/granted/own/new", 2));
  EXPECT_TRUE(fs::exists(top_ + "/granted/own/new/.titan-token-u1-2"));
  const json spec = json::parse(*host::read_file(state.run_folder(record.key) + "/spec.json"));
  EXPECT_EQ(spec["environment"]["TITAN_RANK_PLUGIN_FOLDERS"], top_ + "/granted");
}

// Even with granted folders, an invalid launch file is refused and crashes nothing.
TEST_F(GrantedFoldersTest, InvalidLaunchFileIsRefused) {
  const StateFolder state = StateFolder::open(folder_.file("state")).value();
  node::AttemptRecord record;
  record.ranks = {0};
  record.dump_folder = top_ + "/granted/own/new";
  record.run_as = "root";  // Only used when root runs the test.
  record.run_as_local = true;
  for (const char* launch : {"no text of JSON", "[1]", "null", R"({"config": 3})"}) {
    ++record.key.number;
    record.key.job_uid = "u1";
    EXPECT_TRUE(state.add(record).ok());
    EXPECT_EQ(prepare_as(state, record, launch, shim::Spec{}, "", "", work_, "").refusal.reason, "BAD_LAUNCH")
        << launch;
  }
}

}  // namespace
}  // namespace titan::daemon
