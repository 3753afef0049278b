#include "worker/node/daemon/state_folder.h"

#include <filesystem>

#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::daemon {
namespace {

using rank_protocol::TempFolder;
using ::testing::HasSubstr;
using Phase = AttemptRecord::Phase;

AttemptRecord record(int number) {
  AttemptRecord record;
  record.key = {"u1", number};
  record.ranks = {0, 1};
  record.devices = {2, 3};
  record.dump_folder = "/x";
  record.token = "t";
  record.phase = Phase::kEnded;
  record.error_reason = "SHIM_LOST";
  rank_protocol::RankExit& exit = record.exits.emplace_back();
  exit.rank = 1;
  exit.exit_code = -1;
  exit.signal = 9;
  exit.message = "the last line";
  exit.time_ns = 1'700'000'000'123'456'789;
  exit.out_of_memory = true;
  exit.stop_reason = "TEST";
  return record;
}

TEST(StateFolderTest, RemembersAttemptsAndFences) {
  const TempFolder folder;
  const std::string instance = [&] {
    const auto state = StateFolder::open(folder.file("s"));
    EXPECT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(state->raise_fence({"u1", 3}).ok());
    EXPECT_TRUE(state->add(record(3)).ok());
    EXPECT_EQ(StateFolder::open(folder.file("s")).status().code(), absl::StatusCode::kAlreadyExists);
    return state->instance();
  }();
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->instance(), instance);
  EXPECT_EQ(*state->highest_attempt("u1"), 3);
  EXPECT_EQ(*state->highest_attempt("other"), 0);
  const std::vector<AttemptRecord> all = state->load_all();
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all[0].key, record(3).key);
  EXPECT_EQ(all[0].ranks, record(3).ranks);
  EXPECT_EQ(all[0].devices, record(3).devices);
  EXPECT_EQ(all[0].phase, Phase::kEnded);
  EXPECT_EQ(all[0].error_reason, "SHIM_LOST");
  ASSERT_EQ(all[0].exits.size(), 1u);
  EXPECT_EQ(all[0].exits[0], record(3).exits[0]);
}

// A job's damaged fence is rebuilt from its run folders and reported once; an unreadable fence stops only that job.
TEST(StateFolderTest, ADamagedFenceIsRebuilt) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  const std::string fence = folder.file("s/jobs/u1/fence");
  for (const char* text : {"", "junk", "-3", "99999999999999999999", "7777777777"}) {
    std::filesystem::remove_all(folder.file("s/jobs/u1"));
    for (const int number : {2, 10}) ASSERT_TRUE(state->add(record(number)).ok());
    std::filesystem::create_directory(folder.file("s/jobs/u1/attempt-99x"));
    ASSERT_TRUE(host::replace_file(fence, text).ok());
    std::string damage;
    EXPECT_EQ(state->raise_fence({"u1", 3}, &damage).value(), 10) << text;
    EXPECT_THAT(damage, ::testing::AllOf(HasSubstr(fence), HasSubstr("the highest is attempt 10"))) << text;
    EXPECT_EQ(host::read_file(fence).value(), "10") << "it is repaired";
    damage.clear();
    EXPECT_EQ(state->raise_fence({"u1", 11}, &damage).value(), 11);
    EXPECT_EQ(damage, "");
  }
  std::filesystem::remove(fence);
  std::filesystem::create_directory(fence);
  const absl::Status unreadable = state->raise_fence({"u1", 12}).status();
  EXPECT_EQ(unreadable.code(), absl::StatusCode::kDataLoss) << unreadable;
  EXPECT_THAT(std::string(unreadable.message()), ::testing::AllOf(HasSubstr(fence), HasSubstr("remove it when")));
}

// An older leader is never obeyed: the epoch comes from the copy, or the folder is refused.
TEST(StateFolderTest, DamagedEpochIsRestoredFromItsCopy) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->leader_epoch().value(), 0);
  for (const char* damaged : {"s/leader_epoch", "s/leader_epoch.copy"}) {
    ASSERT_TRUE(state->write_leader_epoch(7).ok());
    ASSERT_TRUE(host::replace_file(folder.file(damaged), "").ok());
    std::string damage;
    EXPECT_EQ(state->leader_epoch(&damage).value(), 7);
    EXPECT_THAT(damage, HasSubstr(folder.file(damaged)));
  }
  ASSERT_TRUE(state->write_leader_epoch(7).ok());
  std::filesystem::remove(folder.file("s/leader_epoch.copy"));  // A worker of the previous version leaves no copy.
  EXPECT_EQ(state->leader_epoch().value(), 7);
  ASSERT_TRUE(host::replace_file(folder.file("s/leader_epoch"), "junk").ok());
  const absl::Status unknown = state->leader_epoch().status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("write the epoch of the present leader there"));
}

// A line feed after an id is ignored; an empty or damaged id does not count as missing.
TEST(StateFolderTest, ADamagedIdIsNotReplaced) {
  const TempFolder folder;
  const std::string instance = [&] {
    const auto state = StateFolder::open(folder.file("s"));
    EXPECT_TRUE(state->claim_for("n1").ok() && state->join("c1").ok());
    for (const char* file : {"s/node", "s/cluster", "s/instance"}) {
      const std::string text = host::read_file(folder.file(file)).value();
      EXPECT_TRUE(host::replace_file(folder.file(file), text + "\n").ok());
    }
    EXPECT_EQ(state->claim_for("n1").value(), "");
    EXPECT_EQ(state->cluster().value(), "c1");
    for (const char* text : {"", "\n", "n 1"}) {
      EXPECT_TRUE(host::replace_file(folder.file("s/node"), text).ok());
      EXPECT_EQ(state->claim_for("n1").status().code(), absl::StatusCode::kDataLoss) << text;
      EXPECT_EQ(host::read_file(folder.file("s/node")).value(), text);
      EXPECT_TRUE(host::replace_file(folder.file("s/cluster"), text).ok());
      EXPECT_THAT(std::string(state->cluster().status().message()), HasSubstr("s/cluster is damaged: it holds"));
    }
    return state->instance();
  }();
  EXPECT_EQ(StateFolder::open(folder.file("s"))->instance(), instance);
  ASSERT_TRUE(host::replace_file(folder.file("s/instance"), "").ok());
  EXPECT_EQ(StateFolder::open(folder.file("s")).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(host::read_file(folder.file("s/instance")).value(), "");
}

// Under another node name, the ranks of its attempts would be stopped as strays.
TEST(StateFolderTest, BelongsToItsNode) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->claim_for("n1").value(), "");
  EXPECT_EQ(state->claim_for("n1").value(), "");
  for (const Phase phase : {Phase::kPreparing, Phase::kLive, Phase::kEnded, Phase::kRefused}) {
    AttemptRecord one = record(1);
    one.phase = phase;
    ASSERT_TRUE(state->add(one).ok());
    const absl::Status refused = state->claim_for("n7").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("is node n1's and holds 1 attempt"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--node n1"));
    EXPECT_EQ(state->claim_for("n1").value(), "") << "nothing has changed";
  }
  AttemptRecord one = record(1);
  one.phase = Phase::kForgotten;
  ASSERT_TRUE(state->add(one).ok());
  EXPECT_EQ(state->claim_for("n7").value(), "n1") << "only its logs are left";
  EXPECT_EQ(state->claim_for("n7").value(), "");
  // An unreadable record may belong to any node.
  ASSERT_TRUE(host::replace_file(state->run_folder({"u1", 1}) + "/attempt.json", "none").ok());
  EXPECT_EQ(state->claim_for("n1").status().code(), absl::StatusCode::kInvalidArgument);
}

// Older versions recorded no name: the first worker to open the folder is its node.
TEST(StateFolderTest, UnnamedFolderBelongsToTheFirstWorker) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->add(record(1)).ok());
  EXPECT_EQ(state->claim_for("n1").value(), "");
  EXPECT_FALSE(state->claim_for("n7").ok());
}

// A new folder of the same name lacks every fence, and no daemon would find records that are written to the old one.
TEST(StateFolderTest, ReplacedFolderAcceptsNoWrites) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->raise_fence({"u1", 3}).ok());
  const std::string here = folder.file("s"), away = folder.file("away");
  std::filesystem::rename(here, away);
  for (const bool is_replaced : {false, true}) {
    if (is_replaced) std::filesystem::create_directories(here + "/jobs");
    EXPECT_EQ(state->check_same().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(state->raise_fence({"u1", 2}).ok()) << "attempt 3 had raised the fence";
    EXPECT_FALSE(state->add(record(4)).ok());
    EXPECT_FALSE(state->join("another").ok());
    EXPECT_FALSE(state->write_leader_epoch(7).ok());
    EXPECT_EQ(std::filesystem::exists(here), is_replaced) << "it is not recreated";
  }
  std::filesystem::remove_all(here);
  std::filesystem::rename(away, here);
  EXPECT_TRUE(state->check_same().ok());
  EXPECT_EQ(state->raise_fence({"u1", 2}).value(), 3);
}

// Only forgotten attempts are deleted, the oldest first, and the fence stays while the job is young.
TEST(StateFolderTest, RetentionKeepsAttemptsThatAreNotForgotten) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->raise_fence({"u1", 2}).ok());
  for (const int number : {1, 2}) {
    AttemptRecord one = record(number);
    one.phase = number == 1 ? Phase::kForgotten : Phase::kEnded;
    ASSERT_TRUE(state->add(one).ok());
  }
  state->remove_old(absl::Hours(1), 1 << 30);
  EXPECT_EQ(state->load_all().size(), 2);
  state->remove_old(absl::Hours(1), 0);
  ASSERT_EQ(state->load_all().size(), 1);
  EXPECT_EQ(state->load_all()[0].key.number, 2);
  EXPECT_EQ(*state->highest_attempt("u1"), 2);
}

// A damaged record is rebuilt from the files next to it; if that fails, only this attempt is lost.
TEST(StateFolderTest, ADamagedRecordIsRebuilt) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  for (const int number : {1, 2, 3}) ASSERT_TRUE(state->add(record(number)).ok());
  // The folder exists but its record was never written: nothing ran.
  std::filesystem::create_directories(folder.file("s/jobs/u1/3"));
  EXPECT_TRUE(state->repair_records().value().empty());
  const std::string run = state->run_folder({"u1", 2}), file = run + "/attempt.json";
  const nlohmann::json spec = {{"record", nlohmann::json::parse(host::read_file(file).value())}};
  for (const char* text : {"", "{\"job_uid\": \"u1\"", "{\"job_uid\": \"u1\"}", "[]", "junk"}) {
    ASSERT_TRUE(host::replace_file(file, text).ok());
    ASSERT_TRUE(host::replace_file(run + "/spec.json", spec.dump()).ok());
    ASSERT_TRUE(host::replace_file(run + "/shim.json", R"({"pid": 1, "state": "running"})").ok());
    const std::vector<std::string> repairs = state->repair_records().value();
    ASSERT_EQ(repairs.size(), 1u) << text;
    EXPECT_THAT(repairs[0], ::testing::AllOf(HasSubstr(file), HasSubstr("rebuilt from spec.json")));
    EXPECT_TRUE(state->repair_records().value().empty()) << "it is reported once";
    EXPECT_EQ(state->load_all()[1].phase, Phase::kLive);
    EXPECT_EQ(state->load_all()[1].devices, record(2).devices);
    EXPECT_EQ(host::read_file(file + ".damaged").value(), text);
  }
  ASSERT_TRUE(host::replace_file(file, "").ok());
  std::filesystem::remove(run + "/shim.json");
  EXPECT_EQ(state->load_all()[1].phase, Phase::kPreparing) << "no shim started";
  ASSERT_TRUE(host::replace_file(run + "/spec.json", "{}").ok());
  const std::vector<std::string> repairs = state->repair_records().value();
  ASSERT_EQ(repairs.size(), 1u);
  EXPECT_THAT(repairs[0], HasSubstr("pgrep -af titan-shim"));
  const std::vector<AttemptRecord> all = state->load_all();
  ASSERT_EQ(all.size(), 3u) << "the records next to it are intact";
  EXPECT_EQ(all[1].phase, Phase::kRefused);
  EXPECT_EQ(all[1].error_reason, "RECORD_LOST");
}

// A folder that cannot be read is not skipped either.
TEST(StateFolderTest, UnreadableFolderIsAnError) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->add(record(1)).ok());
  std::filesystem::create_symlink("2", folder.file("s/jobs/u1/2"));  // A link to itself: too many links.
  EXPECT_FALSE(state->repair_records().ok());
  std::filesystem::remove(folder.file("s/jobs/u1/2"));
  std::filesystem::create_symlink("nothing", folder.file("s/jobs/u1/2"));
  EXPECT_TRUE(state->repair_records().ok()) << state->repair_records().status();
}

TEST(StateFolderTest, UidsStayInsideTheFolder) {
  for (const char* good : {"u1", "3f2a-9", "A.b_c"}) EXPECT_TRUE(valid_uid(good)) << good;
  for (const char* bad : {"", ".", "..", "../x", "a/b", "a b"}) EXPECT_FALSE(valid_uid(bad)) << bad;
}

}  // namespace
}  // namespace titan::daemon
