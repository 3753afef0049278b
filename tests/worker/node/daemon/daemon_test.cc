// titan-worker as a process, with a fake controller and stand-in ranks: commands, kills and restarts.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/rank_protocol/spool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/worker/node/daemon/daemon_case.h"
#include "tests/worker/node/daemon/fake_controller.h"
#include "tests/worker/node/shim/run_folder.h"
#include "worker/node/shim/process.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using rank_protocol::TempFolder;
using shim::alive;
using shim::eventually;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(DaemonTest, RegistersAndBeats) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").beats >= 2; }));
  const v1::Register message = controller_.received("n1").registers[0];
  EXPECT_EQ(message.node(), "n1");
  EXPECT_EQ(message.resources().device(), "cpu");
  EXPECT_EQ(message.resources().devices(), 4);
  EXPECT_GT(message.resources().memory_bytes(), 0);
  EXPECT_FALSE(message.instance().empty());
  EXPECT_EQ(controller_.received("n1").last_beat.lease_epoch(), 1);
  EXPECT_EQ(worker.kill(SIGTERM), 0);
}

TEST_F(DaemonTest, RunsAnAttemptToItsEnd) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {{"steps", 20}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  const Report report = last(1);
  ASSERT_EQ(report.exits_size(), 2);
  EXPECT_EQ(report.exits(0).exit_code(), 0);
  EXPECT_EQ(report.error_reason(), "");
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(events_reach(rank, 22));
    expect_complete(rank);
  }
  EXPECT_TRUE(std::filesystem::exists(dump_.file("out/.titan-token-u1-1")));
  const json started = json::parse(controller_.received("n1").events[0][0].json());
  EXPECT_EQ(started["threads"], "3") << "threads_per_rank of the launch file";
}

// The end of a rank is reported within milliseconds, after all of its events.
TEST_F(DaemonTest, ReportsADeadRankAtOnce) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {}));
  const auto pid = static_cast<pid_t>(beat_ranks()[1].pid());
  const int64_t before = shim::monotonic_nanos();
  ::kill(pid, SIGKILL);
  ASSERT_TRUE(controller_.wait([&] {
    const Report* const report = controller_.last_report("n1", 1);
    return report->phase() == Report::STARTED && report->exits_size() == 1;
  }));
  const int64_t nanos = shim::monotonic_nanos() - before;
  EXPECT_LT(nanos, 500'000'000) << "target: 20 ms";
  RecordProperty("death_to_controller_us", static_cast<int>(nanos / 1000));
  EXPECT_EQ(last(1).exits(0).rank(), 1);
  EXPECT_EQ(last(1).exits(0).signal(), SIGKILL);
  controller_.send("n1", stop(1, false, 0));
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).exits_size(), 2);
}

TEST_F(DaemonTest, MeasuresStartAndEventLatency) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(connected());
  controller_.send("n1", prepare(1, 1, {{"step_ms", 50}}));
  ASSERT_TRUE(reported(1, Report::PREPARED));
  const int port = last(1).store_port();
  const int64_t before = shim::monotonic_nanos();
  controller_.send("n1", start(1, port));
  ASSERT_TRUE(reported(1, Report::STARTED));
  RecordProperty("start_to_started_us", static_cast<int>((shim::monotonic_nanos() - before) / 1000));
  ASSERT_TRUE(events_reach(0, 5));
  int64_t now = 0;
  ASSERT_TRUE(controller_.wait([&, seen = controller_.of("n1").events[0].size()] {
    now = shim::unix_nanos();
    return controller_.of("n1").events[0].size() > seen;
  }));
  const int64_t sent = json::parse(controller_.received("n1").events[0].back().json())["time"];
  RecordProperty("event_latency_us", static_cast<int>((now - sent) / 1000));
  EXPECT_LT(now - sent, 500'000'000) << "target: 20 ms";
}

// If the state folder is deleted, the node reports within seconds that it is unusable, its ranks keep training, and it
// accepts ranks again once the folder is back.
TEST_F(DaemonTest, MissingStateFolderIsReported) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"step_ms", 20}}));
  const auto beats_say = [&](const char* words) {
    return controller_.wait([&] {
      const std::string& unusable = controller_.of("n1").last_beat.unusable();
      return *words == '\0' ? unusable.empty() : absl::StrContains(unusable, words);
    });
  };
  ASSERT_TRUE(beats_say(""));
  const auto rank = static_cast<pid_t>(beat_ranks()[0].pid());
  const std::string away = worker.state() + "-away";
  std::filesystem::rename(worker.state(), away);
  ASSERT_TRUE(beats_say("was deleted or moved away"));
  controller_.send("n1", prepare(2, 1, {}));
  ASSERT_TRUE(reported(2, Report::REFUSED));
  EXPECT_EQ(last(2).error_reason(), "STATE_FOLDER_UNUSABLE");
  EXPECT_FALSE(std::filesystem::exists(worker.state())) << "it is not recreated, because it would lack the fences";
  EXPECT_EQ(::kill(rank, 0), 0) << "attempt 1 keeps running";
  std::filesystem::rename(away, worker.state());
  ASSERT_TRUE(beats_say(""));
  EXPECT_THAT(worker.log(), AllOf(HasSubstr("StateFolderUnusable"), HasSubstr("StateFolderUsable")));
}

// While the installation is being changed, or its mount has no exec permission, no rank could start on the node.
TEST_F(DaemonTest, UnstartableProgramMakesTheNodeUnusable) {
  const TempFolder programs;
  const std::string program = programs.file("titan-shim");
  std::filesystem::copy_file(shim::shim_binary(), program);
  Worker worker(controller_, "n1", {"--shim-binary", program});
  const auto beats_say = [&](const std::string& words) {
    return controller_.wait([&] {
      const std::string& unusable = controller_.of("n1").last_beat.unusable();
      return words.empty() ? unusable.empty() : absl::StrContains(unusable, words);
    });
  };
  ASSERT_TRUE(connected());
  ASSERT_TRUE(beats_say(""));
  ASSERT_EQ(::chmod(program.c_str(), 0644), 0);
  ASSERT_TRUE(beats_say(absl::StrCat("cannot start ", program, ": ")));
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  ASSERT_TRUE(beats_say(""));
}

// A renamed host gets another node name from the unit's --node %l. Under that name the ranks of the old folder would be
// stopped as strays, without saving.
TEST_F(DaemonTest, ANodesFolderIsNotServedUnderAnotherName) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"step_ms", 20}}));
  const auto rank = static_cast<pid_t>(beat_ranks()[0].pid());
  worker.kill(SIGKILL);
  worker.start({}, /*as=*/"n7");
  const int status = worker.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2) << "systemd does not restart it";
  EXPECT_THAT(worker.log(), HasSubstr("is node n1's and holds 1 attempt"));
  EXPECT_EQ(::kill(rank, 0), 0);
  worker.start();
  ASSERT_TRUE(connected());
  EXPECT_EQ(beat_ranks()[0].pid(), rank);
}

// Damaged files of one attempt stop neither the worker's start nor the attempt.
TEST_F(DaemonTest, DamagedFilesOfAnAttemptAreRepaired) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"step_ms", 20}}));
  const v1::RankStatus before = beat_ranks()[0];
  worker.kill(SIGKILL);
  ASSERT_TRUE(controller_.wait([&] { return !controller_.of("n1").connected; }));
  const std::string run = worker.run_folder(1);
  ASSERT_TRUE(host::replace_file(run + "/attempt.json", "").ok());
  ASSERT_TRUE(host::replace_file(run + "/offsets.json", "junk").ok());
  ASSERT_TRUE(host::replace_file(worker.state() + "/jobs/u1/fence", "junk").ok());
  std::ofstream(run + "/exits.jsonl", std::ios::app) << "junk\nhalf a li";
  worker.start();
  ASSERT_TRUE(connected());
  const v1::Register message = controller_.received("n1").registers.back();
  ASSERT_EQ(message.inventory_size(), 1) << worker.log();
  EXPECT_EQ(message.inventory(0).phase(), Report::STARTED);
  EXPECT_EQ(message.inventory(0).ranks(0).pid(), before.pid());
  EXPECT_EQ(message.inventory(0).devices(), 1);
  controller_.send("n1", prepare(2, 1, {}));
  ASSERT_TRUE(reported(1, Report::ENDED)) << "by the newer attempt";
  EXPECT_EQ(last(1).exits_size(), 1);
  EXPECT_EQ(last(1).error_reason(), "") << "how it ended is recorded after the junk";
  ASSERT_TRUE(reported(2, Report::PREPARED));
  EXPECT_EQ(controller_.received("n1").last_beat.unusable(), "");
  for (const char* text : {"RecordDamaged", "FenceDamaged", "offsets.json is damaged", "exits.jsonl is damaged"}) {
    const std::string log = worker.log();
    EXPECT_THAT(log, HasSubstr(text));
    EXPECT_EQ(log.find(text), log.rfind(text)) << text << " is reported once";
  }
}

// An attempt with a lost record cannot continue: its ranks are ended, and its devices stay in use until then.
TEST_F(DaemonTest, AttemptWithALostRecordIsEnded) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"step_ms", 20}}));
  const v1::RankStatus before = beat_ranks()[0];
  const auto shim = json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"))["pid"].get<pid_t>();
  worker.kill(SIGKILL);
  ASSERT_TRUE(controller_.wait([&] { return !controller_.of("n1").connected; }));
  for (const char* file : {"/attempt.json", "/spec.json", "/launch.json"}) {
    ASSERT_TRUE(host::replace_file(worker.run_folder(1) + file, "").ok());
  }
  ::kill(shim, SIGSTOP);  // The shim obeys only once the node has registered.
  worker.start();
  ASSERT_TRUE(connected());
  ::kill(shim, SIGCONT);
  EXPECT_EQ(controller_.received("n1").registers.back().inventory(0).devices(), 4);
  ASSERT_TRUE(reported(1, Report::REFUSED));
  EXPECT_EQ(last(1).error_reason(), "RECORD_LOST");
  ASSERT_TRUE(controller_.wait([&] { return !controller_.last_report("n1", 1)->holds_devices(); }));
  EXPECT_FALSE(alive(static_cast<pid_t>(before.pid()), before.start_ticks()));
  EXPECT_THAT(worker.log(), HasSubstr("pgrep -af titan-shim"));
}

// While the daemon is dead the same processes keep training, and the next daemon forwards the missed events.
TEST_F(DaemonTest, ARestartedDaemonAdoptsItsRanks) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {}));
  const std::map<int, v1::RankStatus> before = beat_ranks();
  ASSERT_EQ(before.size(), 2);
  for (int kill = 0; kill < 5; ++kill) {
    worker.kill(SIGKILL);
    ASSERT_TRUE(controller_.wait([&] { return !controller_.of("n1").connected; }));
    const size_t seen = controller_.received("n1").events[0].size();
    worker.start();
    ASSERT_TRUE(connected());
    ASSERT_TRUE(events_reach(0, seen + 10));
    const v1::Register message = controller_.received("n1").registers.back();
    ASSERT_EQ(message.inventory_size(), 1);
    EXPECT_EQ(message.inventory(0).phase(), Report::STARTED);
    for (const v1::RankStatus& rank : message.inventory(0).ranks()) {
      EXPECT_EQ(rank.pid(), before.at(rank.rank()).pid());
      EXPECT_EQ(rank.start_ticks(), before.at(rank.rank()).start_ticks());
    }
    EXPECT_EQ(message.instance(), controller_.received("n1").registers[0].instance());
  }
  controller_.send("n1", stop(1, true, 20'000));
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).exits(0).exit_code(), 16);
  expect_complete(0);
  expect_complete(1);
}

// A controller with an older store adopts only ranks that are reported as started: a slow shim must not make them look
// prepared.
TEST_F(DaemonTest, StartedRanksAreReportedBeforeTheirShimAnswers) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const v1::RankStatus before = beat_ranks()[0];
  const json shim = json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"));
  worker.kill(SIGKILL);
  ASSERT_TRUE(controller_.wait([&] { return !controller_.of("n1").connected; }));
  ::kill(shim["pid"].get<pid_t>(), SIGSTOP);
  const size_t known = controller_.received("n1").registers.size();
  worker.start();
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() > known; }));
  const v1::Register message = controller_.received("n1").registers.back();
  ::kill(shim["pid"].get<pid_t>(), SIGCONT);
  ASSERT_EQ(message.inventory_size(), 1);
  EXPECT_EQ(message.inventory(0).phase(), Report::STARTED);
  ASSERT_EQ(message.inventory(0).ranks_size(), 1);
  EXPECT_EQ(message.inventory(0).ranks(0).pid(), before.pid());
  controller_.send("n1", stop(1, true, 20'000));
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).exits(0).exit_code(), 16);
}

// Other controllers answer on the same port: one that accepts every worker, then one that rejects it. Ranks continue,
// no command is executed, and the right controller finds everything unchanged.
TEST_F(DaemonTest, AControllerOfAnotherClusterChangesNothing) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const v1::RankStatus before = beat_ranks()[0];
  ASSERT_TRUE(events_reach(0, 5));
  EXPECT_EQ(controller_.received("n1").registers[0].cluster(), "") << "it joins the first cluster that it reaches";
  for (const bool checks : {false, true}) {
    controller_.stop();
    controller_.cluster = "other";
    controller_.checks_cluster = checks;
    const size_t registers = controller_.received("n1").registers.size();
    controller_.start();
    for (size_t tries = 1; tries <= 3; ++tries) {
      ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() >= registers + tries; }));
      controller_.send("n1", stop(1, false, 0));
    }
    EXPECT_EQ(controller_.received("n1").registers.back().cluster(), "fake");
    EXPECT_TRUE(alive(static_cast<pid_t>(before.pid()), before.start_ticks()));
    const std::string expected = checks ? "not of this cluster" : "belongs to cluster other and this worker to fake";
    ASSERT_TRUE(eventually([&] { return worker.log().find(expected) != std::string::npos; }));
    EXPECT_EQ(worker.log().find(expected), worker.log().rfind(expected)) << "reported once";
  }
  controller_.stop();
  controller_.cluster = "fake";
  controller_.start();
  const size_t seen = controller_.received("n1").events[0].size();
  EXPECT_TRUE(events_reach(0, seen + 10));
  expect_complete(0);
  EXPECT_TRUE(alive(static_cast<pid_t>(before.pid()), before.start_ticks()));
}

TEST_F(DaemonTest, AnotherClusterIsAdoptedOnRequest) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const v1::RankStatus before = beat_ranks()[0];
  worker.kill(SIGTERM);
  controller_.stop();
  controller_.cluster = "other";
  controller_.checks_cluster = true;
  controller_.start();
  const size_t first = controller_.received("n1").registers.size();
  worker.start({"--adopt-cluster"});
  ASSERT_TRUE(connected());
  const v1::Register hello = controller_.received("n1").registers.at(first);
  EXPECT_EQ(hello.cluster(), "");
  ASSERT_EQ(hello.inventory_size(), 1);
  ASSERT_EQ(hello.inventory(0).nodes_size(), 1);
  EXPECT_EQ(hello.inventory(0).nodes(0).names(), "n1");
  EXPECT_EQ(hello.inventory(0).nodes(0).ranks(), 1);
  EXPECT_EQ(hello.inventory(0).devices(), 1);
  EXPECT_EQ(hello.inventory(0).threads_per_rank(), 3);
  EXPECT_GT(hello.inventory(0).start_unix_nanos(), 0);
  EXPECT_EQ(beat_ranks()[0].pid(), before.pid());
  // The session is welcomed only after the worker has recorded the id.
  ASSERT_TRUE(eventually([&] { return host::read_file(worker.state() + "/cluster").value_or("") == "other"; }));
  worker.kill(SIGTERM);
  ASSERT_TRUE(controller_.wait([&] { return !controller_.of("n1").connected; }));
  worker.start();
  ASSERT_TRUE(connected());
  EXPECT_EQ(controller_.received("n1").registers.back().cluster(), "other")
      << "recorded, so the flag is needed only once";
}

TEST_F(DaemonTest, EndsDuringTheDaemonsAbsenceAreReported) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {{"steps", 40}, {"ranks", {{"1", {{"exit_code", 11}, {"error", "bad row"}}}}}}));
  worker.kill(SIGKILL);
  ASSERT_TRUE(eventually([&] { return shim::read_exits(worker.run_folder(1))->size() == 2; }));
  worker.start();
  ASSERT_TRUE(reported(1, Report::ENDED));
  const Report ended = last(1);
  for (const v1::RankExitReport& exit : ended.exits()) {
    EXPECT_EQ(exit.exit_code(), exit.rank() == 0 ? 0 : 11);
    if (exit.rank() == 1) {
      EXPECT_EQ(exit.last_words(), "FAKE: bad row");
    }
  }
  EXPECT_EQ(last(1).error_reason(), "");
  ASSERT_TRUE(events_reach(0, 42));
  expect_complete(0);
}

TEST_F(DaemonTest, AKilledShimIsALostAttempt) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {{"child", "session"}}));
  ASSERT_TRUE(events_reach(0, 5));
  const auto child = json::parse(controller_.received("n1").events[0][0].json())["child"].get<pid_t>();
  const std::map<int, v1::RankStatus> ranks = beat_ranks();
  const json parent = json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"));
  const int64_t before = shim::monotonic_nanos();
  ::kill(parent["pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(reported(1, Report::ENDED));
  RecordProperty("shim_death_to_controller_us", static_cast<int>((shim::monotonic_nanos() - before) / 1000));
  EXPECT_EQ(last(1).error_reason(), "SHIM_LOST");
  EXPECT_EQ(last(1).exits_size(), 2);
  EXPECT_EQ(last(1).exits(0).signal(), SIGKILL);
  for (const auto& [rank, status] : ranks) EXPECT_FALSE(alive(static_cast<pid_t>(status.pid()), status.start_ticks()));
  EXPECT_TRUE(eventually([&] { return shim::start_ticks(child) == 0; })) << "a rank's child in a separate session";
}

// The end is reported until it is forgotten, even by a new daemon and for ranks whose exit no process saw.
TEST_F(DaemonTest, NextDaemonReportsTheEndWithAllExits) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 2, {}));
  beat_ranks();
  const json parent = json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"));
  controller_.stop();
  ::kill(parent["pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(eventually([&] {
    const auto record = host::read_file(worker.run_folder(1) + "/attempt.json");
    return record.ok() && json::parse(*record)["phase"] == "ended";
  }));
  worker.kill(SIGKILL);
  controller_.start();
  worker.start();
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).error_reason(), "SHIM_LOST");
  ASSERT_EQ(last(1).exits_size(), 2);
  EXPECT_EQ(last(1).exits(0).signal(), SIGKILL);
  EXPECT_EQ(last(1).exits(1).signal(), SIGKILL);
}

// Text that a message cannot carry would end the stream, again and again.
TEST_F(DaemonTest, InvalidEventsDoNotEndTheSession) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"steps", 1}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  ASSERT_TRUE(events_reach(0, 3));
  std::ofstream spool(rank_protocol::spool_path(worker.run_folder(1), 0), std::ios::app);
  spool << "{\"seq\":4,\"kind\":\"\xFF\xFE\"}\n";
  spool << "{\"seq\":5,\"kind\":\"" << std::string(70 << 20, 'x') << "\"}\n";
  spool << "{\"seq\":6,\"kind\":\"good\"}\n";
  spool.close();
  ASSERT_TRUE(events_reach(0, 6));
  const FakeController::Received received = controller_.received("n1");
  EXPECT_EQ(json::parse(received.events.at(0)[3].json())["kind"], "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(json::parse(received.events.at(0)[4].json())["kind"], "event_too_long");
  EXPECT_EQ(json::parse(received.events.at(0)[5].json())["kind"], "good");
  EXPECT_EQ(received.registers.size(), 1u);
}

// If the disk cannot be read, the state of the shim is unknown: the attempt stays, the log has the reason, and the
// attempt is adopted once its state is known.
TEST_F(DaemonTest, ShimWithAnUnreadableStateIsNotEnded) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const v1::RankStatus before = beat_ranks()[0];
  worker.kill(SIGKILL);
  const std::vector<std::string> hidden = {"shim.json", "shim.lock", "shim.sock"};
  const std::filesystem::path folder = worker.run_folder(1);
  for (const std::string& name : hidden) std::filesystem::rename(folder / name, folder / (name + ".hidden"));
  std::filesystem::create_directory(folder / "shim.json");  // Open succeeds but read fails.
  const size_t known = controller_.received("n1").registers.size();
  worker.start();
  ASSERT_TRUE(
      eventually([&] { return worker.log().find("cannot determine whether its shim lives") != std::string::npos; }));
  EXPECT_THAT(worker.log(), HasSubstr("/shim.json: Is a directory"));
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() > known; }));
  EXPECT_NE(controller_.received("n1").registers.back().inventory(0).phase(), Report::ENDED);
  EXPECT_NE(last(1).phase(), Report::ENDED);
  // At least one file must remain, because a shim without files is gone.
  for (const char* name : {"shim.lock", "shim.sock"})
    std::filesystem::rename(folder / (std::string(name) + ".hidden"), folder / name);
  std::filesystem::remove(folder / "shim.json");
  std::filesystem::rename(folder / "shim.json.hidden", folder / "shim.json");
  const size_t seen = controller_.received("n1").events[0].size();
  EXPECT_TRUE(events_reach(0, seen + 10));
  EXPECT_TRUE(alive(static_cast<pid_t>(before.pid()), before.start_ticks()));
  controller_.send("n1", stop(1, true, 20'000));
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).exits(0).exit_code(), 16) << "its shim forwards commands again";
  EXPECT_EQ(last(1).error_reason(), "");
}

TEST_F(DaemonTest, ShimAndDaemonKilledTogether) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const json parent = json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"));
  worker.kill(SIGKILL);
  ::kill(parent["pid"].get<pid_t>(), SIGKILL);
  worker.start();
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).error_reason(), "SHIM_LOST");
  EXPECT_EQ(last(1).exits(0).signal(), SIGKILL);
}

// If the controller goes away and comes back, no rank notices, and the controller gets every event once.
TEST_F(DaemonTest, ARestartedControllerGetsTheInventory) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const auto before = beat_ranks();
  for (int i = 0; i < 3; ++i) {
    controller_.acknowledge = i == 1;  // The first time it dies before it has recorded the last events.
    controller_.stop();
    controller_.acknowledge = true;
    controller_.start();
    const size_t seen = controller_.received("n1").events[0].size();
    ASSERT_TRUE(events_reach(0, seen + 10));
  }
  EXPECT_EQ(controller_.received("n1").registers.size(), 4);
  EXPECT_EQ(beat_ranks()[0].pid(), before.at(0).pid());
  expect_complete(0);
}

// Events are sent again until they are acknowledged, whatever is lost.
TEST_F(DaemonTest, UnacknowledgedEventsAreResent) {
  controller_.acknowledge = false;
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"steps", 30}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_TRUE(controller_.received("n1").events[0].empty());
  controller_.acknowledge = true;
  worker.kill(SIGKILL);
  worker.start();
  ASSERT_TRUE(events_reach(0, 32));
  expect_complete(0);
  ASSERT_TRUE(eventually([&] {
    const auto places = host::read_file(worker.run_folder(1) + "/offsets.json");
    return places.ok() && json::parse(*places)["0"]["sequence"] == 32;
  }));
  worker.kill(SIGKILL);
  worker.start();
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").beats > 2; }));
  EXPECT_EQ(controller_.received("n1").repeated_events, 0) << "acknowledged events are not sent again";
}

// Ranks get neither what systemd gave the daemon nor its credentials, nor other variables of its environment. Nobody
// else can read its state folder.
TEST_F(DaemonTest, RanksDoNotInheritTheServicesEnvironment) {
  const char* const withheld[] = {"NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "TITAN_TLS_KEY", "A_SECRET"};
  const char* const passed[] = {"TITAN_RANK_PLANTED", "SITE_SCRATCH"};
  for (const char* name : withheld) ::setenv(name, "planted", 1);
  for (const char* name : passed) ::setenv(name, "planted", 1);
  Worker worker(controller_, "n1", {"--pass-env", "SITE_*"});
  for (const char* name : withheld) ::unsetenv(name);
  for (const char* name : passed) ::unsetenv(name);
  ASSERT_TRUE(launch(1, 1, {}));
  const std::string path = absl::StrCat("/proc/", beat_ranks()[0].pid(), "/environ");
  const std::string environment = *host::read_file(path);
  for (const char* name : withheld) EXPECT_THAT(environment, ::testing::Not(HasSubstr(name)));
  for (const char* name : passed) EXPECT_THAT(environment, HasSubstr(absl::StrCat(name, "=planted")));
  EXPECT_THAT(environment, HasSubstr("OMP_NUM_THREADS=3"));
  EXPECT_EQ(std::filesystem::status(worker.state()).permissions(), std::filesystem::perms::owner_all);
}

// A rank may do anything to its files: the daemon and the shim survive, and the rest of the node continues.
TEST_F(DaemonTest, ShrinkingBeaconEndsNoOtherProcess) {
  Worker worker(controller_, "n1");
  const pid_t daemon = worker.pid();
  const int64_t ticks = shim::start_ticks(daemon);
  ASSERT_TRUE(launch(1, 2, {{"ranks", {{"1", {{"shrinks_beacon", 3}}}}}}));
  ASSERT_TRUE(events_reach(1, 10));
  const int beats = controller_.received("n1").beats;
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").beats > beats + 2; }));
  controller_.send("n1", stop(1, true, 300));
  ASSERT_TRUE(reported(1, Report::ENDED));
  std::map<int, v1::RankExitReport> exits;
  const Report ended = last(1);
  for (const v1::RankExitReport& exit : ended.exits()) exits[exit.rank()] = exit;
  ASSERT_EQ(exits.size(), 2u);
  EXPECT_EQ(exits[0].signal(), 0) << "saved and exited";
  EXPECT_EQ(exits[1].signal(), SIGKILL) << "could not be asked to stop";
  EXPECT_TRUE(alive(daemon, ticks));
}

// One of several controllers leads, and the others name it. When it dies the next one is found, without any effect on
// ranks and events.
TEST_F(DaemonTest, FollowsTheLeader) {
  FakeController other;
  other.stand_by(controller_.address());
  controller_.acknowledge = false;  // It dies before it has recorded anything.
  Worker worker(absl::StrCat("127.0.0.1:1,", other.address(), ",", controller_.address()), "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  EXPECT_TRUE(other.wait([&] { return other.refused() >= 1; }));
  EXPECT_TRUE(other.received("n1").registers.empty());
  EXPECT_THAT(worker.log(), HasSubstr("connected to " + controller_.address()));
  const auto before = beat_ranks();
  controller_.stop();
  EXPECT_TRUE(other.wait([&] { return other.refused() >= 2; })) << "it is tried again and does not lead yet";
  other.stand_by("");
  ASSERT_TRUE(other.wait([&] { return other.of("n1").beats >= 2; }));
  const v1::Register hello = other.received("n1").registers.at(0);
  ASSERT_EQ(hello.inventory_size(), 1);
  EXPECT_EQ(hello.inventory(0).ranks(0).pid(), before.at(0).pid());
  ASSERT_TRUE(other.wait([&] { return other.of("n1").events[0].size() > 10; }));
  EXPECT_EQ(other.received("n1").gaps, 0);
  EXPECT_THAT(worker.log(), HasSubstr("connected to " + other.address()));
}

// A connection without answers is noticed, because beats are answered.
TEST_F(DaemonTest, ReconnectsToASilentController) {
  controller_.lease_milliseconds = 1000;
  controller_.answer_beats = false;
  Worker worker(controller_, "n1");
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() >= 2; }));
  EXPECT_THAT(worker.log(), HasSubstr("no answer to beats"));
}

TEST_F(DaemonTest, CommandsAreIdempotent) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const auto pid = beat_ranks()[0].pid();
  const size_t reports = controller_.received("n1").reports.size();
  controller_.send("n1", prepare(1, 1, {}));
  controller_.send("n1", start(1, 1));
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").reports.size() >= reports + 2; }));
  EXPECT_EQ(last(1).phase(), Report::STARTED);
  EXPECT_EQ(beat_ranks()[0].pid(), pid);
  controller_.send("n1", stop(1, false, 0));
  ASSERT_TRUE(reported(1, Report::ENDED));
  controller_.send("n1", stop(1, false, 0));
  controller_.send("n1", start(1, 1));
  controller_.send("n1", stop(9, false, 0));
  ASSERT_TRUE(reported(9, Report::ENDED));
  EXPECT_EQ(last(9).error_reason(), "NOT_PREPARED");
  EXPECT_EQ(last(1).phase(), Report::ENDED);
  controller_.send("n1", start(8, 1));
  ASSERT_TRUE(reported(8, Report::REFUSED));
}

// A newer attempt ends the older one first. An older attempt is refused, even by a restarted daemon.
TEST_F(DaemonTest, AttemptsAreFenced) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(2, 4, {{"ignore_stop", true}}));
  const auto old = beat_ranks();
  controller_.send("n1", prepare(3, 4, {}));
  ASSERT_TRUE(reported(3, Report::PREPARED)) << "all four devices are free again";
  EXPECT_EQ(last(2).phase(), Report::ENDED);
  for (const auto& [rank, status] : old) EXPECT_FALSE(alive(static_cast<pid_t>(status.pid()), status.start_ticks()));
  controller_.send("n1", prepare(1, 1, {}));
  ASSERT_TRUE(reported(1, Report::REFUSED));
  EXPECT_EQ(last(1).error_reason(), "STALE_ATTEMPT");
  EXPECT_EQ(last(1).highest_attempt(), 3);
  worker.kill(SIGKILL);
  worker.start();
  ASSERT_TRUE(
      controller_.wait([&] { return controller_.of("n1").registers.size() == 2 && controller_.of("n1").connected; }));
  controller_.send("n1", prepare(2, 1, {}));
  ASSERT_TRUE(controller_.wait([&] {
    const Report* const report = controller_.last_report("n1", 2);
    return report != nullptr && report->phase() == Report::ENDED;
  })) << "it is known here and over";
  controller_.send("n1", prepare(1, 1, {}));
  ASSERT_TRUE(reported(1, Report::REFUSED));
}

TEST_F(DaemonTest, HangingShimDoesNotBlockANewerAttempt) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const json parent = json::parse(*host::read_file(worker.run_folder(1) + "/shim.json"));
  ::kill(parent["pid"].get<pid_t>(), SIGSTOP);
  controller_.send("n1", prepare(2, 1, {}));
  EXPECT_TRUE(reported(2, Report::PREPARED));
}

TEST_F(DaemonTest, RefusesAttemptsThatCannotRun) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(connected());
  controller_.send("n1", prepare(1, 5, {}));
  ASSERT_TRUE(reported(1, Report::REFUSED));
  EXPECT_EQ(last(1).error_reason(), "NO_DEVICES");
  EXPECT_THAT(last(1).error_message(), HasSubstr("5 ranks need a device each, 4 of 4 are free"));
  v1::ControllerMessage broken = prepare(2, 1, {});
  broken.mutable_prepare()->set_launch_json("{}");
  controller_.send("n1", broken);
  ASSERT_TRUE(reported(2, Report::REFUSED));
  EXPECT_EQ(last(2).error_reason(), "BAD_LAUNCH");
  v1::ControllerMessage outside = prepare(3, 1, {});
  outside.mutable_prepare()->mutable_id()->set_job_uid("../../etc");
  controller_.send("n1", outside);
  ASSERT_TRUE(reported(3, Report::REFUSED));
  EXPECT_EQ(last(3).error_reason(), "BAD_REQUEST");
  v1::ControllerMessage unwritable = prepare(4, 1, {});
  unwritable.mutable_prepare()->set_dump_folder("/proc/none/out");
  controller_.send("n1", unwritable);
  ASSERT_TRUE(reported(4, Report::REFUSED));
  EXPECT_EQ(last(4).error_reason(), "DUMP_FOLDER_UNUSABLE");
  EXPECT_THAT(last(4).error_message(), HasSubstr("/proc/none/out"));
}

// A missing mount must not become a new folder: without the folder that the job had, the leader refuses and creates
// nothing.
TEST_F(DaemonTest, RefusesAnotherFolderThanTheJobs) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"steps", 1}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  const std::string id = last(1).folder_id();
  EXPECT_EQ(id.size(), 32u);
  const auto prepare_with = [&](int attempt, const std::string& known) {
    v1::ControllerMessage message = prepare(attempt, 1, {});
    message.mutable_prepare()->set_folder_id(known);
    controller_.send("n1", message);
  };
  prepare_with(2, id);
  ASSERT_TRUE(reported(2, Report::PREPARED));
  EXPECT_EQ(last(2).folder_id(), id);
  EXPECT_FALSE(std::filesystem::exists(dump_.file("out/.titan-token-u1-1"))) << "the older attempt's token is deleted";
  prepare_with(3, "another");
  ASSERT_TRUE(reported(3, Report::REFUSED));
  EXPECT_EQ(last(3).error_reason(), "DUMP_FOLDER_REPLACED");
  std::filesystem::rename(dump_.file("out"), dump_.file("elsewhere"));
  prepare_with(4, id);
  ASSERT_TRUE(reported(4, Report::REFUSED));
  EXPECT_EQ(last(4).error_reason(), "CHECKPOINTS_GONE");
  EXPECT_THAT(last(4).error_message(), HasSubstr(dump_.file("out")));
  EXPECT_FALSE(std::filesystem::exists(dump_.file("out")));
  std::filesystem::rename(dump_.file("elsewhere"), dump_.file("out"));
  prepare_with(5, id);
  EXPECT_TRUE(reported(5, Report::PREPARED));
}

// One of two nodes sees another folder under the same name.
TEST_F(DaemonTest, ReportsADumpFolderThatIsNotShared) {
  Worker worker(controller_, "n1", {});
  ASSERT_TRUE(connected());
  controller_.send("n1", prepare(1, 1, {}, /*leader=*/false));
  ASSERT_TRUE(reported(1, Report::PREPARED));
  controller_.send("n1", start(1, 1));
  ASSERT_TRUE(reported(1, Report::REFUSED));
  EXPECT_EQ(last(1).error_reason(), "DUMP_FOLDER_NOT_SHARED");
  EXPECT_THAT(last(1).error_message(), HasSubstr(dump_.file("out")));
}

TEST_F(DaemonTest, CheckpointsOnRequest) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const v1::RankStatus seen = beat_ranks()[0];  // The beacon exists now.
  EXPECT_GT(seen.own_steps(), 0);
  EXPECT_GT(seen.own_nanoseconds(), 0);
  v1::ControllerMessage message;
  message.mutable_checkpoint()->mutable_id()->set_job_uid("u1");
  message.mutable_checkpoint()->mutable_id()->set_number(1);
  controller_.send("n1", message);
  EXPECT_TRUE(controller_.wait([&] {
    for (const v1::RankEvent& event : controller_.of("n1").events[0]) {
      if (event.json().find("checkpoint_committed") != std::string::npos) return true;
    }
    return false;
  }));
}

class TracesTest : public DaemonTest {
 protected:
  static v1::ReadTrace look(int rank, uint64_t trace) {
    v1::ReadTrace read;
    read.mutable_id()->set_job_uid("u1");
    read.mutable_id()->set_number(1);
    read.set_rank(rank);
    read.set_trace(trace);
    return read;
  }
  static v1::ReadTrace order(int rank, uint64_t trace, int64_t first_step, int64_t steps) {
    v1::ReadTrace read = look(rank, trace);
    read.set_first_step(first_step);
    read.set_steps(steps);
    return read;
  }
  v1::TraceData ask(const v1::ReadTrace& read) {
    v1::ControllerMessage message;
    *message.mutable_read_trace() = read;
    message.mutable_read_trace()->set_request(++request_);
    controller_.send("n1", message);
    v1::TraceData answer;
    EXPECT_TRUE(controller_.wait([&] {
      const std::vector<v1::TraceData>& traces = controller_.of("n1").traces;
      if (traces.empty() || traces.back().request() != request_) return false;
      answer = traces.back();
      return true;
    }));
    return answer;
  }
  v1::TraceData wait_written(const v1::ReadTrace& read) {
    v1::TraceData answer;
    EXPECT_TRUE(shim::eventually([&] {
      answer = ask(read);
      return answer.state() == v1::TraceData::WRITTEN || !answer.error_reason().empty();
    }));
    return answer;
  }

  int64_t request_ = 0;
};

// The request and its state are in the rank's beacon and the trace is in the run folder, so any daemon can continue.
TEST_F(TracesTest, TraceIsRequestedOnceAndReadInPieces) {
  constexpr int64_t kBytes = 2'500'000;
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"trace_bytes", kBytes}}));
  const int64_t step = beat_ranks()[0].step();
  const v1::TraceData free = ask(look(0, 5));
  EXPECT_EQ(free.state(), v1::TraceData::STATE_UNSPECIFIED);
  EXPECT_EQ(free.error_reason(), "");
  EXPECT_GE(free.step(), step);
  EXPECT_EQ(free.phase(), "forward");

  const int64_t first = free.step() + 400;  // Two seconds from now.
  const v1::TraceData waiting = ask(order(0, 5, first, 3));
  EXPECT_EQ(waiting.state(), v1::TraceData::WAITING);
  EXPECT_EQ(waiting.first_step(), first);
  EXPECT_EQ(waiting.last_step(), first + 2);
  const v1::TraceData other = ask(order(0, 6, first, 1));
  EXPECT_EQ(other.error_reason(), "TRACE_IN_PROGRESS");
  EXPECT_THAT(other.error_message(), HasSubstr(absl::StrCat("3 steps from step ", first)));

  worker.kill(SIGKILL);
  worker.start();
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() == 2; }));
  ASSERT_TRUE(connected());
  const v1::TraceData written = wait_written(order(0, 5, first, 3));
  EXPECT_EQ(written.error_reason(), "");
  EXPECT_EQ(written.first_step(), first);
  EXPECT_EQ(written.last_step(), first + 2);
  EXPECT_EQ(written.total_bytes(), kBytes);
  std::string all;
  while (static_cast<int64_t>(all.size()) < kBytes) {
    v1::ReadTrace read = look(0, 5);
    read.set_offset(static_cast<int64_t>(all.size()));
    const v1::TraceData piece = ask(read);
    ASSERT_EQ(piece.offset(), all.size());
    ASSERT_GT(piece.data().size(), 0);
    EXPECT_LE(piece.data().size(), 1 << 20);
    all += piece.data();
  }
  EXPECT_EQ(all, std::string(kBytes, 't'));

  // The next trace replaces it.
  EXPECT_EQ(wait_written(order(0, 6, 0, 1)).total_bytes(), kBytes);
  EXPECT_FALSE(std::filesystem::exists(rank_protocol::trace_path(worker.run_folder(1), 0, 5)));

  // Written traces are served as long as logs are.
  controller_.send("n1", stop(1, /*save=*/false, 0));
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(ask(look(0, 6)).total_bytes(), kBytes);
  v1::ControllerMessage forget;
  forget.mutable_forget()->mutable_id()->set_job_uid("u1");
  forget.mutable_forget()->mutable_id()->set_number(1);
  controller_.send("n1", forget);
  EXPECT_EQ(ask(look(0, 6)).total_bytes(), kBytes);
  EXPECT_EQ(ask(look(0, 5)).error_reason(), "RANK_GONE");
}

TEST_F(TracesTest, TraceThatCannotBeRecordedIsRefused) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 3, {{"ranks", {{"0", {{"trace_bytes", 0}}}, {"2", {{"steps", 1}}}}}}));
  beat_ranks();
  EXPECT_EQ(wait_written(order(0, 5, 0, 1)).error_reason(), "TRACE_NOT_WRITTEN");
  EXPECT_EQ(ask(order(1, 5, 0, 1)).error_reason(), "NO_PROFILER");
  EXPECT_EQ(wait_written(order(2, 5, 0, 1)).error_reason(), "RANK_GONE");
  EXPECT_EQ(ask(order(7, 5, 0, 1)).error_reason(), "RANK_GONE") << "a rank of another node";
  EXPECT_EQ(ask(order(0, 0, 0, 1)).error_reason(), "BAD_REQUEST");
  v1::ReadTrace outside = look(0, 5);
  outside.mutable_id()->set_job_uid("../u1");
  EXPECT_EQ(ask(outside).error_reason(), "BAD_REQUEST");
}

TEST_F(DaemonTest, ServesLogsAlsoAfterForget) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {{"steps", 1}, {"print", 100}, {"print_bytes", 1}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  v1::ControllerMessage forget;
  forget.mutable_forget()->mutable_id()->set_job_uid("u1");
  forget.mutable_forget()->mutable_id()->set_number(1);
  controller_.send("n1", forget);
  v1::ControllerMessage read;
  read.mutable_read_log()->set_request(7);
  read.mutable_read_log()->mutable_id()->set_job_uid("u1");
  read.mutable_read_log()->mutable_id()->set_number(1);
  read.mutable_read_log()->set_offset(-1);
  read.mutable_read_log()->set_tail_lines(2);
  controller_.send("n1", read);
  read.mutable_read_log()->set_rank(5);
  controller_.send("n1", read);
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").logs.size() == 2; }));
  read.mutable_read_log()->mutable_id()->set_number(2);  // The node does not know this attempt.
  controller_.send("n1", read);
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").logs.size() == 3; }));
  const v1::LogData log = controller_.received("n1").logs[0];
  EXPECT_EQ(log.request(), 7);
  EXPECT_EQ(log.data(), "line 98 x\nline 99 x\n");
  EXPECT_TRUE(log.end());
  EXPECT_TRUE(log.closed());
  EXPECT_EQ(controller_.received("n1").logs[1].error(), "it never began on this node");
  EXPECT_THAT(controller_.received("n1").logs[2].error(), HasSubstr("this node has no log of it"));
  EXPECT_FALSE(std::filesystem::exists(worker.run_folder(1) + "/rank-0.events.jsonl"));
  worker.kill(SIGKILL);
  worker.start();
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() == 2; }));
  EXPECT_EQ(controller_.received("n1").registers[1].inventory_size(), 0);
}

TEST_F(DaemonTest, OldLogsAreDeleted) {
  Worker worker(controller_, "n1", {"--log-retention-hours", "0"});
  ASSERT_TRUE(launch(1, 1, {{"steps", 1}}));
  ASSERT_TRUE(reported(1, Report::ENDED));
  v1::ControllerMessage forget;
  forget.mutable_forget()->mutable_id()->set_job_uid("u1");
  forget.mutable_forget()->mutable_id()->set_number(1);
  controller_.send("n1", forget);
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(worker.state() + "/jobs/u1"); }));
}

TEST_F(DaemonTest, OneDaemonPerStateFolder) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(connected());
  const std::string command = absl::StrCat(shim::worker_binary(), " --controller ", controller_.address(),
                                           " --node n1 --devices cpu:1 --rank-binary ", shim::fake_rank_binary(),
                                           " --state ", worker.state(), " 2> ", dump_.file("second"));
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(*host::read_file(dump_.file("second")), HasSubstr("another titan-worker uses the state folder"));
}

TEST_F(DaemonTest, SigtermLeavesTheRanks) {
  Worker worker(controller_, "n1");
  ASSERT_TRUE(launch(1, 1, {}));
  const v1::RankStatus rank = beat_ranks()[0];
  EXPECT_EQ(worker.kill(SIGTERM), 0);
  EXPECT_TRUE(alive(static_cast<pid_t>(rank.pid()), rank.start_ticks()));
}

TEST_F(DaemonTest, SigtermSavesAndStopsWithTheFlag) {
  Worker worker(controller_, "n1", {"--stop-ranks-on-exit"});
  ASSERT_TRUE(launch(1, 1, {}));
  beat_ranks();
  EXPECT_EQ(worker.kill(SIGTERM), 0);
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).exits(0).exit_code(), 16);
}

TEST_F(DaemonTest, MetricsPage) {
  Worker worker(controller_, "n1",
                {"--metrics-port", "0", "--metrics-address", "127.0.0.1", "--port-file", dump_.file("ports")});
  ASSERT_TRUE(launch(1, 2, {}));
  beat_ranks();
  const int port = json::parse(*host::read_file(dump_.file("ports")))["metrics"];
  ASSERT_GT(port, 0);
  std::string page;
  ASSERT_TRUE(eventually([&] {
    const std::string command = absl::StrCat("bash -c 'exec 3<>/dev/tcp/127.0.0.1/", port,
                                             "; printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3' > ",
                                             dump_.file("page"), " 2>/dev/null");
    (void)std::system(command.c_str());
    page = *host::read_file(dump_.file("page"));
    return page.find("titan_worker_ranks{node=\"n1\"} 2") != std::string::npos &&
           page.find("kind=\"dump\",node=\"n1\"} ") != std::string::npos;
  })) << page;
  EXPECT_THAT(page, HasSubstr("kind=\"state\",node=\"n1\"} "));
  EXPECT_THAT(page, HasSubstr("titan_worker_memory_kills_total{node=\"n1\"} 0"));
  EXPECT_THAT(page, HasSubstr("process_resident_memory_bytes "));
  EXPECT_THAT(page, HasSubstr("titan_build_info"));
  EXPECT_THAT(page, HasSubstr("titan_worker_devices_used{node=\"n1\"} 2"));
  EXPECT_EQ(worker.kill(SIGTERM), 0) << "it runs all destructors and exits normally";
}

TEST(WorkerFlagsTest, AreCheckedAndNamed) {
  const TempFolder folder;
  const auto run = [&](const std::string& flags) {
    const int status =
        std::system(absl::StrCat(shim::worker_binary(), " ", flags, " > ", folder.file("out"), " 2>&1").c_str());
    return std::pair(WEXITSTATUS(status), *host::read_file(folder.file("out")));
  };
  const auto [usage, usage_text] = run("--nod n1");
  EXPECT_EQ(usage, 2);
  const auto [node, node_text] = run("--node Bad_Name");
  EXPECT_EQ(node, 2);
  EXPECT_THAT(node_text, HasSubstr("'Bad_Name' is not a node id"));
  const auto [address, address_text] = run("--controller 127.0.0.1:7700,nonsense");
  EXPECT_EQ(address, 2);
  EXPECT_THAT(address_text, HasSubstr("'nonsense'"));
  const auto [devices, devices_text] = run("--devices tpu:3 --state " + folder.file("state"));
  EXPECT_EQ(devices, 2);
  EXPECT_THAT(devices_text, HasSubstr("--devices is 'tpu:3', expected auto, cpu:N or cuda:N"));
  const auto [rank, rank_text] = run("--devices cpu:1 --rank-binary /none/titan-rank --state " + folder.file("state"));
  EXPECT_EQ(rank, 1);
  EXPECT_THAT(rank_text, HasSubstr("/none/titan-rank"));
  EXPECT_EQ(run("--help").first, 0);
  EXPECT_THAT(run("--version").second, HasSubstr("titan-worker " TITAN_VERSION));
}

}  // namespace
}  // namespace titan::daemon
