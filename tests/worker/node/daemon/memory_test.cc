// Some ranks run out of memory while others do not, in separate control groups.

#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/daemon/daemon_case.h"
#include "worker/node/shim/control_group.h"

namespace titan::daemon {
namespace {

using shim::alive;
using shim::eventually;
using ::testing::HasSubstr;

class MemoryTest : public DaemonTest {
 protected:
  static constexpr int64_t kLimit = 64 << 20;

  void SetUp() override {
    const auto home = shim::find_group_home({});
    if (!home.ok() || home->unified) GTEST_SKIP() << "needs control groups of version 1 that may be made here";
  }
  static v1::ControllerMessage of_neighbour(v1::ControllerMessage message) {
    const auto rename = [](auto* command) { command->mutable_id()->set_job_uid("u2"); };
    if (message.has_prepare()) {
      rename(message.mutable_prepare());
      message.mutable_prepare()->set_leader(false);
      message.mutable_prepare()->clear_token();
    }
    if (message.has_start()) rename(message.mutable_start());
    if (message.has_stop()) rename(message.mutable_stop());
    return message;
  }
  v1::AttemptReport wait_for(const std::string& uid, int attempt, v1::AttemptReport::Phase phase) {
    v1::AttemptReport found;
    EXPECT_TRUE(controller_.wait([&] {
      for (const v1::AttemptReport& report : controller_.of("n1").reports) {
        if (report.id().job_uid() != uid || report.id().number() != attempt || report.phase() != phase) continue;
        found = report;
        return true;
      }
      return false;
    })) << uid;
    return found;
  }
  // Returns the rank's process id from shim.json.
  static pid_t rank_of(const Worker& worker, const std::string& uid, int attempt) {
    const std::string file = absl::StrCat(worker.state(), "/jobs/", uid, "/attempt-", attempt, "/shim.json");
    return nlohmann::json::parse(*host::read_file(file))["ranks"][0]["pid"].get<pid_t>();
  }
  static std::string memory_group(pid_t pid) {
    const std::string groups = *host::read_file(absl::StrCat("/proc/", pid, "/cgroup"));
    for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
      if (absl::StrContains(line, ":memory:")) return std::string(line.substr(line.rfind('/') + 1));
    }
    return "";
  }
};

// Each rank that exceeded its memory is named with the limit; a neighbour that is killed at the same time is not.
TEST_F(MemoryTest, NamesOnlyTheRankThatRanOutOfMemory) {
  const int rounds = std::getenv("TITAN_LONG") != nullptr ? 20 : 5;
  Worker worker(controller_, "n1", {"--memory-per-rank", absl::StrCat(1.0 / 16)});
  ASSERT_TRUE(connected());
  for (int round = 1; round <= rounds; ++round) {
    controller_.send("n1", of_neighbour(prepare(round, 1, {})));
    wait_for("u2", round, Report::PREPARED);
    controller_.send("n1", of_neighbour(start(round, 1)));
    wait_for("u2", round, Report::STARTED);
    ASSERT_TRUE(launch(round, 1, {{"eat_mib", 2000}})) << last(round).error_message();
    const Report ended = wait_for("u1", round, Report::ENDED);
    ::kill(rank_of(worker, "u2", round), SIGKILL);
    const Report neighbour = wait_for("u2", round, Report::ENDED);
    ASSERT_EQ(ended.exits_size(), 1);
    EXPECT_EQ(ended.exits(0).signal(), SIGKILL);
    EXPECT_TRUE(ended.exits(0).out_of_memory()) << "round " << round;
    EXPECT_EQ(ended.exits(0).memory_limit_bytes(), kLimit);
    ASSERT_EQ(neighbour.exits_size(), 1);
    EXPECT_EQ(neighbour.exits(0).signal(), SIGKILL);
    EXPECT_FALSE(neighbour.exits(0).out_of_memory()) << "round " << round;
  }
}

// A process that has removed all of its marks is found by its control group, even by a later daemon.
TEST_F(MemoryTest, GroupIsEmptiedAndRemoved) {
  Worker worker(controller_, "n1");
  const std::string pids = dump_.file("pid");
  const std::string leave =
      absl::StrCat("env -i setsid sh -c 'echo $$ >", pids, "; exec sleep 1000' >/dev/null 2>&1 &");
  ASSERT_TRUE(launch(1, 1, {{"run", leave}})) << last(1).error_message();
  pid_t left = 0;
  ASSERT_TRUE(eventually([&] { return bool(std::ifstream(pids) >> left); }));
  const int64_t ticks = shim::start_ticks(left);
  const std::string group = memory_group(left);
  EXPECT_THAT(group, HasSubstr("-u1-1"));
  EXPECT_EQ(memory_group(rank_of(worker, "u1", 1)), group);
  const std::string folder = absl::StrCat(shim::find_group_home({})->folder, "/", group);
  EXPECT_TRUE(std::filesystem::exists(folder));
  const pid_t shim = nlohmann::json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"))["pid"].get<pid_t>();
  worker.kill(SIGKILL);
  ::kill(shim, SIGKILL);
  worker.start();
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_TRUE(eventually([&] { return !alive(left, ticks); }));
  v1::ControllerMessage forget;
  forget.mutable_forget()->mutable_id()->set_job_uid("u1");
  forget.mutable_forget()->mutable_id()->set_number(1);
  controller_.send("n1", forget);
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(folder); }));
}

}  // namespace
}  // namespace titan::daemon
