#pragma once

// Runs titan-worker as a process with stand-in ranks and a fake controller that the test drives.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/worker/node/daemon/fake_controller.h"
#include "tests/worker/node/shim/run_folder.h"
#include "worker/node/shim/control_group.h"
#include "worker/node/shim/process.h"

namespace titan::daemon {

// Starts a worker with a temporary state folder.
class Worker {
 public:
  Worker(FakeController& controller, std::string node, std::vector<std::string> flags = {})
      : Worker(controller.address(), std::move(node), std::move(flags)) {}
  Worker(std::string controllers, std::string node, std::vector<std::string> flags = {})
      : controllers_(std::move(controllers)), node_(std::move(node)), flags_(std::move(flags)) {
    start();
  }
  ~Worker() {
    kill(SIGKILL);
    end_ranks();
    std::error_code error;
    for (const auto& item : std::filesystem::recursive_directory_iterator(state(), error)) {
      if (item.path().filename() == "shim.json") remove_group_of(item.path().parent_path().string());
    }
  }
  void start(const std::vector<std::string>& more = {}, const std::string& as = "") {
    std::vector<std::string> arguments = {shim::worker_binary(),
                                          "--controller",
                                          controllers_,
                                          "--node",
                                          as.empty() ? node_ : as,
                                          "--state",
                                          state(),
                                          "--devices",
                                          "cpu:4",
                                          "--rank-binary",
                                          shim::fake_rank_binary()};
    arguments.insert(arguments.end(), flags_.begin(), flags_.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int log = ::open((folder_.file("worker.log")).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(log, 2);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  int kill(int signal) {
    int status = 0;
    if (pid_ <= 0) return 0;
    ::kill(pid_, signal);
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  // Returns the wait status of a daemon that ends by itself.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }
  // Removes the control group, because no later daemon does.
  static void remove_group_of(const std::string& run_folder) {
    const nlohmann::json spec =
        nlohmann::json::parse(host::read_file(run_folder + "/spec.json").value_or("{}"), nullptr, false);
    if (!spec.is_object() || !spec.contains("group")) return;
    const std::string group = shim::group_from_json(spec["group"]).folder;
    EXPECT_TRUE(shim::eventually([&group] { return shim::remove_group(group); })) << group;
  }
  // Ends everything that still runs below the state folder.
  void end_ranks() {
    std::error_code error;
    for (const auto& item : std::filesystem::recursive_directory_iterator(state(), error)) {
      if (item.path().filename() != "shim.json") continue;
      const nlohmann::json status =
          nlohmann::json::parse(host::read_file(item.path().string()).value_or("{}"), nullptr, false);
      const pid_t pid = status.value("pid", 0);
      if (shim::alive(pid, status.value("start_ticks", int64_t{0}))) ::kill(pid, SIGKILL);
    }
  }
  pid_t pid() const { return pid_; }
  const rank_protocol::TempFolder& folder() const { return folder_; }
  std::string state() const { return folder_.file("state"); }
  std::string run_folder(int attempt) const { return absl::StrCat(state(), "/jobs/u1/attempt-", attempt); }
  std::string log() const { return *host::read_file(folder_.file("worker.log")); }

 private:
  const std::string controllers_;
  const std::string node_;
  const std::vector<std::string> flags_;
  rank_protocol::TempFolder folder_;
  pid_t pid_ = 0;
};

class DaemonTest : public ::testing::Test {
 protected:
  using Report = v1::AttemptReport;

  v1::ControllerMessage prepare(int attempt, int ranks, const nlohmann::json& fake, bool leader = true) {
    v1::ControllerMessage message;
    v1::Prepare& prepare = *message.mutable_prepare();
    prepare.mutable_id()->set_job_uid("u1");
    prepare.mutable_id()->set_number(attempt);
    prepare.set_leader(leader);
    prepare.set_launch_json(shim::fake_launch(ranks, fake, attempt).dump());
    for (int rank = 0; rank < ranks; ++rank) prepare.add_ranks(rank);
    prepare.set_dump_folder(dump_.file("out"));
    prepare.set_token(absl::StrCat("token-", attempt));
    prepare.set_orphan_timeout_seconds(600);
    prepare.set_run_as(run_as_);
    prepare.set_run_as_local(run_as_ == "root");
    return message;
  }
  v1::ControllerMessage start(int attempt, int port) {
    v1::ControllerMessage message;
    message.mutable_start()->mutable_id()->set_job_uid("u1");
    message.mutable_start()->mutable_id()->set_number(attempt);
    message.mutable_start()->set_store_host("127.0.0.1");
    message.mutable_start()->set_store_port(port);
    return message;
  }
  v1::ControllerMessage stop(int attempt, bool save, int64_t grace) {
    v1::ControllerMessage message;
    message.mutable_stop()->mutable_id()->set_job_uid("u1");
    message.mutable_stop()->mutable_id()->set_number(attempt);
    message.mutable_stop()->set_save(save);
    message.mutable_stop()->set_grace_milliseconds(grace);
    message.mutable_stop()->set_reason("test");
    return message;
  }
  bool connected(const std::string& node = "n1") {
    return controller_.wait([&] { return controller_.of(node).connected; });
  }
  bool reported(int attempt, Report::Phase phase, const std::string& node = "n1") {
    return controller_.wait([&] {
      const Report* const report = controller_.last_report(node, attempt);
      return report != nullptr && report->phase() == phase;
    });
  }
  Report last(int attempt, const std::string& node = "n1") {
    Report report;
    controller_.wait([&] {
      const Report* const found = controller_.last_report(node, attempt);
      if (found != nullptr) report = *found;
      return true;
    });
    return report;
  }
  // Prepares and starts; returns false if either fails.
  bool launch(int attempt, int ranks, const nlohmann::json& fake) {
    if (!connected()) return false;
    controller_.send("n1", prepare(attempt, ranks, fake));
    if (!reported(attempt, Report::PREPARED)) return false;
    controller_.send("n1", start(attempt, last(attempt).store_port()));
    return reported(attempt, Report::STARTED);
  }
  // Returns the node's answers about its ranks, in order.
  std::vector<v1::Diagnosis> diagnose(int attempt, bool stacks) {
    v1::ControllerMessage message;
    v1::Diagnose& order = *message.mutable_diagnose();
    order.mutable_id()->set_job_uid("u1");
    order.mutable_id()->set_number(attempt);
    order.set_stacks(stacks);
    order.set_most_calls(100);
    controller_.send("n1", message);
    std::vector<v1::Diagnosis> answers;
    EXPECT_TRUE(controller_.wait([&] {
      answers = controller_.of("n1").diagnoses;
      return !answers.empty() && answers.back().end();
    }));
    return answers;
  }
  // Returns all ranks of the last beat by rank, once they have pids.
  std::map<int, v1::RankStatus> beat_ranks() {
    std::map<int, v1::RankStatus> ranks;
    controller_.wait([&] {
      ranks.clear();
      for (const v1::AttemptBeat& attempt : controller_.of("n1").last_beat.attempts()) {
        for (const v1::RankStatus& rank : attempt.ranks()) {
          if (rank.pid() > 0 && rank.step() > 0) ranks[rank.rank()] = rank;
        }
      }
      return !ranks.empty();
    });
    return ranks;
  }
  bool events_reach(int rank, size_t count) {
    return controller_.wait([&] { return controller_.of("n1").events[rank].size() >= count; });
  }
  // Checks that no event is lost, doubled or reordered: the numbers are 1..n and the steps grow by one.
  void expect_complete(int rank) {
    const FakeController::Received received = controller_.received("n1");
    EXPECT_EQ(received.gaps, 0);
    int64_t step = 0;
    int64_t sequence = 0;
    for (const v1::RankEvent& event : received.events.at(rank)) {
      ASSERT_EQ(event.sequence(), ++sequence);
      const nlohmann::json parsed = nlohmann::json::parse(event.json());
      ASSERT_EQ(parsed["seq"], sequence);
      if (parsed["kind"] == "step") {
        ASSERT_EQ(parsed["step"], ++step);
      }
    }
  }

  std::string run_as_ = "root";  // User of the jobs; only used when root runs the test.
  FakeController controller_;
  rank_protocol::TempFolder dump_;
};

}  // namespace titan::daemon
