#include "worker/node/shim/stacks.h"

#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/rank_protocol/spool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/shim/run_folder.h"

namespace titan::shim {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kDeadlineMilliseconds = 60'000;

std::string program() { return (std::filesystem::path(shim_binary()).parent_path() / "titan-stacks").string(); }

std::string stacks_of(const RunFolder& run, int rank) {
  return host::read_file(rank_protocol::stacks_path(run.path(), rank)).value_or("");
}

// Stacks of a hung rank as the shim gets them: one child for all ranks, a file for each, and the ranks continue.
TEST(ShimStacksTest, EachRankHasAFileWithItsThreads) {
  RunFolder run(2, {{"steps", -1}});
  run.start_shim();
  Client client(run.path());
  ASSERT_TRUE(client.ask({{"command", "start"}, {"store_host", "127.0.0.1"}, {"store_port", 1}})["ok"].get<bool>());
  std::vector<StackTarget> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back({run.wait_for_event(rank, "started")["pid"].get<pid_t>(), rank});
    std::ofstream(rank_protocol::stacks_path(run.path(), rank)) << "of an earlier time";
  }
  ranks.push_back({ranks[0].pid, 7});
  ranks.back().pid = 1 << 30;  // No such process.
  const absl::StatusOr<pid_t> child = start_stacks(program(), run.path(), ranks, kDeadlineMilliseconds);
  ASSERT_TRUE(child.ok()) << child.status();
  int status = 0;
  ASSERT_EQ(::waitpid(*child, &status, 0), *child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(stacks_of(run, rank), StartsWith(absl::StrCat("process ", ranks[rank].pid, " fake_rank, ")));
    EXPECT_THAT(stacks_of(run, rank), HasSubstr(" main+0x"));
  }
  EXPECT_THAT(stacks_of(run, 7), HasSubstr(" does not exist\n"));
  for (const auto& file : std::filesystem::directory_iterator(run.path())) EXPECT_NE(file.path().extension(), ".new");
  EXPECT_TRUE(client.ask({{"command", "status"}})["ranks"][0]["running"].get<bool>());
}

TEST(ShimStacksTest, AMissingProgramIsNamed) {
  RunFolder run(1, {});
  const absl::StatusOr<pid_t> child = start_stacks("/nowhere/titan-stacks", run.path(), {{1, 0}}, 0);
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(child.status().message(), HasSubstr("start /nowhere/titan-stacks, which must be in titan-shim's folder"));
}

}  // namespace
}  // namespace titan::shim
