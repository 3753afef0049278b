#include "worker/node/daemon/prepare_files.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host/file_io.h"
#include "common/rank_protocol/launch.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/worker/node/shim/run_folder.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;

AttemptRecord leading_record(const std::string& dump_folder, int attempt) {
  AttemptRecord record;
  record.key = {"u1", attempt};
  record.leader = true;
  record.ranks = {0};
  record.dump_folder = dump_folder;
  record.token = absl::StrCat("token-", attempt);
  return record;
}

// Returns "names*ranks" for each row that a controller with an older store would get.
std::string rows_of(const Prepared& prepared) {
  if (prepared.facts.nodes == nullptr) return "none";
  return absl::StrJoin(*prepared.facts.nodes, " ", [](std::string* out, const v1::NodeRow& row) {
    absl::StrAppend(out, row.names(), "*", row.ranks());
  });
}

// Files that the worker creates in a job's folder follow the submitting user's umask, not the daemon's.
TEST(PrepareFilesTest, TheDumpFolderFollowsTheJobsUmask) {
  const rank_protocol::TempFolder folder;
  const auto mode_of = [](const std::string& path) {
    return static_cast<unsigned>(fs::status(path).permissions() & fs::perms::all);
  };
  const auto prepare = [&](const std::string& dump, const std::string& umask) {
    nlohmann::json launch = shim::fake_launch(1, {}, 1);
    launch["config"]["job"]["umask"] = umask;
    const std::string run_folder = folder.file("run-" + dump);
    fs::create_directories(run_folder);
    const Prepared prepared =
        prepare_files(leading_record(folder.file(dump), 1), run_folder, launch.dump(), shim::Spec{}, "", "");
    EXPECT_EQ(prepared.refusal.message, "");
  };
  prepare("of-a-group", "002");
  prepare("of-a-user", "077");
  EXPECT_EQ(mode_of(folder.file("of-a-group")), 0775u);
  EXPECT_EQ(mode_of(folder.file("of-a-group/.titan-folder")), 0664u);
  EXPECT_EQ(mode_of(folder.file("of-a-group/.fence.lock")), 0664u);
  EXPECT_EQ(mode_of(folder.file("of-a-group/.titan-token-u1-1")), 0664u);
  EXPECT_EQ(mode_of(folder.file("of-a-user")), 0700u);
  EXPECT_EQ(mode_of(folder.file("of-a-user/.titan-folder")), 0600u);
}

// Storage may answer a preparation long after its attempt was given up and a newer one was prepared.
TEST(PrepareFilesTest, ALatePreparationLeavesTheTokenOfANewerAttempt) {
  const rank_protocol::TempFolder folder;
  const std::string dump = folder.file("dump");
  const auto prepare = [&](int attempt) {
    const std::string run_folder = folder.file(absl::StrCat("run-", attempt));
    fs::create_directories(run_folder);
    const Prepared prepared = prepare_files(leading_record(dump, attempt), run_folder,
                                            shim::fake_launch(1, {}, attempt).dump(), shim::Spec{}, "", "");
    EXPECT_EQ(prepared.refusal.message, "");
    EXPECT_EQ(prepared.folder_id.size(), 32u);
    EXPECT_EQ(prepared.facts.threads_per_rank, 3);
    EXPECT_EQ(rows_of(prepared), "n1*1");
  };
  const auto token = [&](int attempt) { return absl::StrCat(dump, "/.titan-token-u1-", attempt); };
  prepare(10);
  prepare(9);
  EXPECT_EQ(*host::read_file(token(10)), "token-10");
  discard_token(leading_record(dump, 9));
  EXPECT_FALSE(fs::exists(token(9)));
  EXPECT_FALSE(check_token(leading_record(dump, 10), folder.file("run-10"), 0));
  EXPECT_EQ(check_token(leading_record(dump, 9), folder.file("run-9"), 0).reason, "DUMP_FOLDER_NOT_SHARED");
  prepare(11);
  EXPECT_FALSE(fs::exists(token(10))) << "the token of an older attempt is deleted";
}

// The launch file of ranks does not grow with the number of nodes, and has only the address of their node.
TEST(PrepareFilesTest, RanksGetOnlyTheirNodesAddress) {
  const rank_protocol::TempFolder folder;
  rank_protocol::Launch launch = *rank_protocol::launch_from_json(shim::fake_launch(2, {}, 1));
  launch.ranks.push_back({2, 0, "n2", "127.0.0.2"});
  for (int node = 3; node <= 1'000; ++node) {
    const int first = static_cast<int>(launch.ranks.size());
    launch.ranks.push_back({first, 0, absl::StrCat("n", node), "127.0.0.3"});
    launch.ranks.push_back({first + 1, 1, absl::StrCat("n", node), "127.0.0.3"});
  }
  const Prepared prepared = prepare_files(leading_record(folder.file("dump"), 1), folder.file(""),
                                          to_json(launch).dump(), shim::Spec{}, "", "");
  EXPECT_EQ(prepared.refusal.message, "");
  EXPECT_EQ(rows_of(prepared), "n1*2 n2*1 n[3-1000]*2");
  const std::string written = *host::read_file(folder.file("launch.json"));
  EXPECT_LT(written.size(), 600u);
  rank_protocol::Launch read = *rank_protocol::launch_from_json(nlohmann::json::parse(written));
  EXPECT_EQ(read.ranks.back().host, "");
  for (size_t rank = 2; rank < read.ranks.size(); ++rank) read.ranks[rank].host = launch.ranks[rank].host;
  EXPECT_EQ(to_json(read), to_json(launch));
}

// A folded launch has no addresses: the node adds its own, and its ranks need no other.
TEST(PrepareFilesTest, AFoldedLaunchGetsTheNodesOwnAddress) {
  const rank_protocol::TempFolder folder;
  rank_protocol::Launch launch = *rank_protocol::launch_from_json(shim::fake_launch(2, {}, 1));
  launch.ranks.push_back({2, 0, "n2", "192.0.2.8"});
  AttemptRecord record = leading_record("", 1);
  record.leader = false;
  record.ranks = {2};
  const Prepared prepared =
      prepare_files(record, folder.file(""), to_folded_json(launch).dump(), shim::Spec{}, "", "192.0.2.8");
  EXPECT_EQ(prepared.refusal.message, "");
  for (int rank : {0, 1}) launch.ranks[rank].host = "";
  EXPECT_EQ(to_json(*rank_protocol::read_launch(folder.file("launch.json"))), to_json(launch));
  EXPECT_EQ(rows_of(prepared), "n1*2 n2*1");
  EXPECT_EQ(nlohmann::json::parse(*host::read_file(folder.file("spec.json")))["alone"], false);
}

// A job on a single node listens on loopback, whatever address the node has.
TEST(PrepareFilesTest, SingleNodeJobStaysOnLoopback) {
  const rank_protocol::TempFolder folder;
  rank_protocol::Launch launch = *rank_protocol::launch_from_json(shim::fake_launch(1, {}, 1));
  launch.ranks[0].host = "192.0.2.7";
  shim::Spec spec;
  spec.address = "192.0.2.7";
  (void)prepare_files(leading_record("", 1), folder.file(""), to_json(launch).dump(), spec, "", "");
  const auto alone = nlohmann::json::parse(*host::read_file(folder.file("spec.json")));
  EXPECT_EQ(alone["address"], "127.0.0.1");
  EXPECT_EQ(alone["alone"], true);
  EXPECT_EQ(alone["environment"]["NCCL_SOCKET_IFNAME"], "=lo");
  EXPECT_EQ(rank_protocol::read_launch(folder.file("launch.json"))->ranks[0].host, "127.0.0.1");

  launch.ranks.push_back({1, 0, "n2", "192.0.2.8"});
  (void)prepare_files(leading_record("", 1), folder.file(""), to_json(launch).dump(), spec, "", "");
  const auto together = nlohmann::json::parse(*host::read_file(folder.file("spec.json")));
  EXPECT_EQ(together["address"], "192.0.2.7");
  EXPECT_EQ(together["alone"], false);
  EXPECT_FALSE(together["environment"].contains("NCCL_SOCKET_IFNAME")) << "no interface has this address";
  EXPECT_EQ(rank_protocol::read_launch(folder.file("launch.json"))->ranks[0].host, "192.0.2.7");
}

// On other nodes, the leader's loopback address means those nodes themselves, so it is refused before any node waits.
TEST(PrepareFilesTest, LoopbackStoreIsRefusedAcrossNodes) {
  const rank_protocol::TempFolder folder;
  rank_protocol::Launch launch = *rank_protocol::launch_from_json(shim::fake_launch(1, {}, 1));
  const auto refused = [&](const char* leader, const char* other) {
    launch.ranks.resize(1);
    launch.ranks[0].host = leader;
    launch.ranks.push_back({1, 0, "n2", other});
    shim::Spec spec;
    spec.address = leader;
    return prepare_files(leading_record("", 1), folder.file(""), to_json(launch).dump(), spec, "", "").refusal.reason;
  };
  EXPECT_EQ(refused("localhost", "192.0.2.8"), "ADDRESS_IS_LOOPBACK");
  EXPECT_EQ(refused("127.0.0.1", "localhost"), "");
  EXPECT_EQ(refused("192.0.2.7", "192.0.2.8"), "");
}

// In folders where users may write, links are not followed.
TEST(PrepareFilesTest, NoLinkIsFollowed) {
  const rank_protocol::TempFolder folder;
  ASSERT_TRUE(host::replace_file(folder.file("precious"), "theirs").ok());
  fs::create_symlink(folder.file("precious"), folder.file("token.new"));
  EXPECT_FALSE(host::replace_file(folder.file("token"), "ours").ok());
  EXPECT_EQ(*host::read_file(folder.file("precious")), "theirs");
}

}  // namespace
}  // namespace titan::daemon
