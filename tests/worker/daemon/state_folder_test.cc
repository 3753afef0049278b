#include "worker/daemon/state_folder.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
  v1::RankExitReport& exit = record.exits.emplace_back();
  exit.set_rank(1);
  exit.set_exit_code(-1);
  exit.set_signal(9);
  exit.set_last_words("the last line");
  exit.set_time_unix_nanos(1'700'000'000'123'456'789);
  exit.set_out_of_memory(true);
  exit.set_stop_reason("TEST");
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
  EXPECT_EQ(all[0].exits[0].SerializeAsString(), record(3).exits[0].SerializeAsString());
  // What cannot be read lets nobody pass: an old attempt would run beside a newer one.
  const std::string fence = folder.file("s/jobs/u1/fence");
  ASSERT_TRUE(shim::write_file(fence, "").ok());
  EXPECT_EQ(state->highest_attempt("u1").status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(fence);
  std::filesystem::create_directory(fence);
  EXPECT_FALSE(state->highest_attempt("u1").ok());
}

// Under another name nobody would own the ranks of the attempts that are in it: they would be stopped as strangers.
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
  EXPECT_EQ(state->claim_for("n7").value(), "n1") << "its logs are all that is left";
  EXPECT_EQ(state->claim_for("n7").value(), "");
  // One that cannot be read may be anybody's.
  ASSERT_TRUE(shim::write_file(state->run_folder({"u1", 1}) + "/attempt.json", "none").ok());
  EXPECT_EQ(state->claim_for("n1").status().code(), absl::StatusCode::kInvalidArgument);
}

// A version that wrote no name down: whoever comes first is its node.
TEST(StateFolderTest, AnOldFolderIsWhoseWorkerOpensIt) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->add(record(1)).ok());
  EXPECT_EQ(state->claim_for("n1").value(), "");
  EXPECT_FALSE(state->claim_for("n7").ok());
}

// In a new folder of the same name every fence is lost, and what is promised there nobody finds.
TEST(StateFolderTest, NothingIsPromisedInAFolderThatTookItsPlace) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->raise_fence({"u1", 3}).ok());
  const std::string here = folder.file("s"), away = folder.file("away");
  std::filesystem::rename(here, away);
  for (const bool is_replaced : {false, true}) {
    if (is_replaced) std::filesystem::create_directories(here + "/jobs");
    EXPECT_EQ(state->check_same().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(state->raise_fence({"u1", 2}).ok()) << "attempt 3 was here";
    EXPECT_FALSE(state->add(record(4)).ok());
    EXPECT_FALSE(state->join("another").ok());
    EXPECT_FALSE(state->write_leader_epoch(7).ok());
    EXPECT_EQ(std::filesystem::exists(here), is_replaced) << "it is not made again";
  }
  std::filesystem::remove_all(here);
  std::filesystem::rename(away, here);
  EXPECT_TRUE(state->check_same().ok());
  EXPECT_EQ(state->raise_fence({"u1", 2}).value(), 3);
}

// Only forgotten attempts go, the oldest first, and the fence stays while the job is young.
TEST(StateFolderTest, RetentionKeepsWhatIsNotForgotten) {
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

// Whoever overlooked an attempt would give its devices away.
TEST(StateFolderTest, ARecordThatCannotBeReadIsNamed) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  for (const int number : {1, 2}) ASSERT_TRUE(state->add(record(number)).ok());
  // Made, but its record was never written: nothing ran.
  std::filesystem::create_directories(folder.file("s/jobs/u1/3"));
  EXPECT_TRUE(state->check_records().ok()) << state->check_records();
  const std::string file = state->run_folder(record(2).key) + "/attempt.json";
  for (const char* text : {"", "{\"job_uid\": \"u1\"", "{\"job_uid\": \"u1\"}", "[]"}) {
    ASSERT_TRUE(shim::write_file(file, text).ok());
    const absl::Status status = state->check_records();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(file)) << text;
  }
}

// Nor is a folder passed over that nobody can look at.
TEST(StateFolderTest, AFolderThatCannotBeLookedAtIsAnError) {
  const TempFolder folder;
  const auto state = StateFolder::open(folder.file("s"));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->add(record(1)).ok());
  std::filesystem::create_symlink("2", folder.file("s/jobs/u1/2"));  // Of itself: too many links.
  EXPECT_FALSE(state->check_records().ok());
  std::filesystem::remove(folder.file("s/jobs/u1/2"));
  std::filesystem::create_symlink("nothing", folder.file("s/jobs/u1/2"));
  EXPECT_TRUE(state->check_records().ok()) << state->check_records();
}

TEST(StateFolderTest, UidsStayInsideTheFolder) {
  for (const char* good : {"u1", "3f2a-9", "A.b_c"}) EXPECT_TRUE(valid_uid(good)) << good;
  for (const char* bad : {"", ".", "..", "../x", "a/b", "a b"}) EXPECT_FALSE(valid_uid(bad)) << bad;
}

}  // namespace
}  // namespace titan::daemon
