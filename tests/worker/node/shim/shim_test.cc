// The shim with real processes: its reports, and what remains after kills.

#include "worker/node/shim/shim.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/worker/node/shim/run_folder.h"
#include "worker/node/shim/exit_log.h"
#include "worker/node/shim/log_file.h"
#include "worker/node/shim/process.h"

namespace titan::shim {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json start(Client& client) {
  const json status = client.ask({{"command", "subscribe"}});
  return client.ask({{"command", "start"}, {"store_host", "127.0.0.1"}, {"store_port", status["store_port"]}});
}

json next_exit(Client& client) {
  for (;;) {
    const json event = client.next_event();
    if (event.is_null() || event["event"] == "exit") return event.value("exit", json());
  }
}

bool gone(const json& rank) {
  return eventually([&] { return !alive(rank["pid"].get<pid_t>(), rank["start_ticks"].get<int64_t>()); });
}

TEST(ProcessTest, StateBelongsToTheExactProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const int64_t ticks = start_ticks(child);
  ASSERT_GT(ticks, 0);
  EXPECT_TRUE(eventually([&] { return process_state(child, ticks).value_or(0) == 'S'; }));
  EXPECT_EQ(process_state(child, ticks + 1).value_or('?'), 0) << "another process of that number";
  EXPECT_EQ(process_state(0, 0).value_or('?'), 0);
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(eventually([&] { return process_state(child, ticks).value_or(0) == 'T'; }));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(eventually([&] { return process_state(child, ticks).value_or('?') == 0; })) << "a zombie is gone";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(process_state(child, ticks).value_or('?'), 0);
}

TEST(ShimTest, RunsRanksToTheirEndAndRecordsThem) {
  RunFolder run(2, {{"steps", 3}});
  run.start_shim();
  Client client(run.path());
  const json answer = start(client);
  ASSERT_TRUE(answer["ok"].get<bool>()) << answer;
  EXPECT_EQ(answer["state"], "running");
  EXPECT_EQ(start(client)["ranks"][0]["pid"], answer["ranks"][0]["pid"]) << "start is idempotent";
  next_exit(client);
  next_exit(client);
  EXPECT_EQ(client.next_event()["event"], "ended");
  EXPECT_EQ(run.wait_for_shim(), 0);
  const std::vector<rank_protocol::RankExit> exits = run.exits();
  ASSERT_EQ(exits.size(), 2);
  for (const rank_protocol::RankExit& exit : exits) {
    EXPECT_EQ(exit.exit_code, 0);
    EXPECT_EQ(exit.signal, 0);
    EXPECT_FALSE(exit.out_of_memory);
    EXPECT_EQ(exit.message, absl::StrCat("rank ", exit.rank, " of 2 is up"));
  }
  EXPECT_EQ(json::parse(*host::read_file(run.path() + "/shim.json"))["state"], "ended");
}

// Rank 0 inherits the listening socket of the store's port; the others do not.
TEST(ShimTest, PassesTheStoreSocketToRankZeroOnly) {
  RunFolder run(2, {});
  run.start_shim();
  Client client(run.path());
  const int port = client.ask({{"command", "status"}})["store_port"];
  ASSERT_GT(port, 0);
  start(client);
  const json first = run.wait_for_event(0, "started");
  const json second = run.wait_for_event(1, "started");
  EXPECT_EQ(first["port"], port);
  EXPECT_EQ(second["port"], 0);
  EXPECT_EQ(first["store"], absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(first["threads"], "3");
  // The port closes with rank 0, because no other process holds the socket.
  ::kill(first["pid"].get<pid_t>(), SIGKILL);
  next_exit(client);
  const host::Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_NE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

bool has_stacks(const RunFolder& run, int rank) {
  std::ifstream file(rank_protocol::stacks_path(run.path(), rank));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.find("fake_rank") != std::string::npos;
}

json next_stacks(Client& client) {
  for (;;) {
    json event = client.next_event();
    if (event.is_null() || event.value("event", "") == "stacks") return event;
  }
}

// Stacks of hung ranks are taken while they live, even of a stopped rank that no signal reaches, and change no rank.
TEST(ShimTest, TakesStacksOfAllRanksWhichKeepRunning) {
  RunFolder run(2, {});
  run.start_shim();
  Client client(run.path());
  EXPECT_FALSE(client.ask({{"command", "stacks"}}).value("ok", true)) << "no rank runs yet";
  const json answer = start(client);
  run.wait_for_event(1, "step");
  const auto stopped = answer["ranks"][1]["pid"].get<pid_t>();
  ::kill(stopped, SIGSTOP);
  EXPECT_TRUE(client.ask({{"command", "stacks"}}).value("ok", false));
  const json stacks_event = next_stacks(client);
  EXPECT_FALSE(stacks_event.contains("error")) << stacks_event;
  EXPECT_TRUE(has_stacks(run, 0));
  EXPECT_TRUE(has_stacks(run, 1));
  EXPECT_EQ(process_state(stopped, answer["ranks"][1]["start_ticks"].get<int64_t>()).value_or('?'), 'T');
  EXPECT_TRUE(client.ask({{"command", "stacks"}}).value("ok", false));
  EXPECT_EQ(next_stacks(client)["event"], "stacks") << "a moment later the answer is immediate";
}

// After a failed collective a rank sends a request through its beacon, waits for the answer there, and exits.
TEST(ShimTest, StacksAreTakenBeforeARankExits) {
  RunFolder run(2, {{"ranks", {{"1", {{"wants_look", 3}, {"steps", 3}, {"exit_code", 12}}}}}});
  run.start_shim();
  Client client(run.path());
  start(client);
  const json exit = next_exit(client);
  EXPECT_EQ(exit["rank"], 1);
  EXPECT_EQ(exit["exit_code"], 12);
  EXPECT_TRUE(has_stacks(run, 0)) << "stacks of all ranks of the node are taken";
  EXPECT_TRUE(has_stacks(run, 1));
}

TEST(ShimTest, ReportsAKilledRankAndKeepsTheOthers) {
  RunFolder run(2, {});
  run.start_shim();
  Client client(run.path());
  const json answer = start(client);
  run.wait_for_event(1, "started");
  const int64_t before = monotonic_nanos();
  ::kill(answer["ranks"][1]["pid"].get<pid_t>(), SIGKILL);
  const json exit = next_exit(client);
  const int64_t nanos = monotonic_nanos() - before;
  EXPECT_EQ(exit["rank"], 1);
  EXPECT_EQ(exit["signal"], SIGKILL);
  EXPECT_EQ(exit["exit_code"], -1);
  EXPECT_LT(nanos, 200'000'000) << "target: 20 ms";
  RecordProperty("death_to_report_us", static_cast<int>(nanos / 1000));
  EXPECT_TRUE(client.ask({{"command", "status"}})["ranks"][0]["running"].get<bool>());
}

// A message that is cut inside a character must not crash the shim: it reports an end only after recording it.
TEST(ShimTest, MessageCutInsideACharacterIsWritten) {
  const std::string kept = "FAKE: " + std::string(2041, 'x');
  RunFolder run(1, {{"steps", 1}, {"exit_code", 11}, {"error", std::string(2041, 'x') + "é"}});
  run.start_shim();
  Client client(run.path());
  start(client);
  EXPECT_EQ(next_exit(client)["last_words"], kept + "\xEF\xBF\xBD");
  EXPECT_EQ(client.next_event()["event"], "ended");
  EXPECT_EQ(run.wait_for_shim(), 0);
  const json state = json::parse(*host::read_file(run.path() + "/shim.json"));
  EXPECT_EQ(state["state"], "ended");
  EXPECT_EQ(state["ranks"][0]["exit"]["last_words"], kept + "\xEF\xBF\xBD");
}

TEST(ShimTest, LastWordsAreTheErrorEventOrElseTheLastLine) {
  RunFolder run(2,
                {{"steps", 1}, {"exit_code", 11}, {"ranks", {{"1", {{"error", "token 7 is not in the vocabulary"}}}}}});
  run.start_shim();
  Client client(run.path());
  start(client);
  std::map<int, json> exits;
  for (int i = 0; i < 2; ++i) {
    const json exit = next_exit(client);
    exits[exit["rank"]] = exit;
  }
  EXPECT_EQ(exits[0]["last_words"], "rank 0 of 2 is up");
  EXPECT_EQ(exits[1]["last_words"], "FAKE: token 7 is not in the vocabulary");
  EXPECT_EQ(exits[1]["exit_code"], 11);
}

// The kernel ends the ranks of a killed shim.
TEST(ShimTest, RanksDieWithTheShim) {
  RunFolder run(2, {});
  run.start_shim();
  Client client(run.path());
  const json answer = start(client);
  run.wait_for_event(0, "started");
  run.kill_shim(SIGKILL);
  EXPECT_TRUE(gone(answer["ranks"][0]));
  EXPECT_TRUE(gone(answer["ranks"][1]));
}

// Child processes of a rank end with it: in its process group at once, in another session when all ranks are over.
TEST(ShimTest, LeavesNoDescendants) {
  for (const char* kind : {"group", "session"}) {
    RunFolder run(1, {{"child", kind}});
    run.start_shim();
    Client client(run.path());
    start(client);
    const json started = run.wait_for_event(0, "started");
    const auto child = started["child"].get<pid_t>();
    const int64_t ticks = start_ticks(child);
    ASSERT_TRUE(alive(child, ticks));
    ::kill(started["pid"].get<pid_t>(), SIGKILL);
    EXPECT_EQ(run.wait_for_shim(), 0);
    EXPECT_TRUE(eventually([&] { return !alive(child, ticks); })) << kind;
  }
}

// After SIGKILL a process in the kernel does not end at once, and a traced child is not gone for its parent until its
// tracer has seen it. The attempt still ends.
TEST(ShimTest, UnreapableStrayDoesNotBlockTheEnd) {
  RunFolder run(1, {{"child", "session"}});
  run.start_shim();
  Client client(run.path());
  const json answer = start(client);
  ASSERT_TRUE(answer["ok"].get<bool>()) << answer;
  const auto child = run.wait_for_event(0, "started")["child"].get<pid_t>();
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, child, nullptr, nullptr), 0) << std::strerror(errno);
  client.ask({{"command", "stop"}, {"grace_milliseconds", 0}});
  EXPECT_EQ(next_exit(client)["signal"], SIGKILL);
  EXPECT_EQ(client.next_event()["event"], "ended");
  EXPECT_EQ(run.wait_for_shim(), 0);
  EXPECT_EQ(::waitpid(child, nullptr, __WALL), child);
}

TEST(ShimTest, StopLetsRanksSave) {
  RunFolder run(2, {});
  run.start_shim();
  Client client(run.path());
  start(client);
  for (size_t save = 1; save <= 3; ++save) {  // Each request gives one save.
    client.ask({{"command", "checkpoint"}});
    EXPECT_TRUE(eventually([&] { return run.events(0, "checkpoint_committed").size() == save; })) << save;
  }
  client.ask({{"command", "stop"}, {"save", true}, {"grace_milliseconds", 20'000}, {"reason", "CANCELLED"}});
  EXPECT_EQ(run.wait_for_shim(), 0);
  for (const rank_protocol::RankExit& exit : run.exits()) {
    EXPECT_EQ(exit.exit_code, rank_protocol::kExitStopped);
    EXPECT_EQ(exit.stop_reason, "CANCELLED");
  }
}

TEST(ShimTest, StopBeforeTheBeaconExistsWaitsForIt) {
  RunFolder run(1, {});
  run.start_shim();
  Client client(run.path());
  start(client);
  client.ask({{"command", "stop"}, {"save", true}, {"grace_milliseconds", 20'000}});
  EXPECT_EQ(run.wait_for_shim(), 0);
  EXPECT_EQ(run.exits()[0].exit_code, rank_protocol::kExitStopped);
}

TEST(ShimTest, StopKillsAfterTheGraceAndAtOnceWithoutIt) {
  RunFolder stubborn(1, {{"ignore_stop", true}});
  stubborn.start_shim();
  Client client(stubborn.path());
  start(client);
  client.ask({{"command", "stop"}, {"save", true}, {"grace_milliseconds", 100}});
  EXPECT_EQ(stubborn.wait_for_shim(), 0);
  EXPECT_EQ(stubborn.exits()[0].signal, SIGKILL);

  RunFolder now(1, {});
  now.start_shim();
  Client other(now.path());
  start(other);
  other.ask({{"command", "stop"}, {"save", true}, {"grace_milliseconds", 0}});
  EXPECT_EQ(now.wait_for_shim(), 0);
  EXPECT_EQ(now.exits()[0].signal, SIGKILL);
}

TEST(ShimTest, StopBeforeStartEndsIt) {
  RunFolder run(1, {});
  run.start_shim();
  Client client(run.path());
  client.ask({{"command", "stop"}});
  EXPECT_EQ(run.wait_for_shim(), 0);
  EXPECT_TRUE(run.exits().empty());
}

// If no daemon renews the lease, the ranks save and stop. Renewing it keeps them running.
TEST(ShimTest, OrphansSaveAndStop) {
  Spec spec;
  spec.orphan_timeout_seconds = 0.5;
  RunFolder run(1, {}, spec);
  run.start_shim();
  Client client(run.path());
  start(client);
  const int64_t renew_until = monotonic_nanos() + 1'000'000'000;
  while (monotonic_nanos() < renew_until) {
    ASSERT_TRUE(client.ask({{"command", "lease"}, {"silence_milliseconds", 0}})["ok"].get<bool>());
    ::usleep(50'000);
  }
  ASSERT_TRUE(client.ask({{"command", "status"}})["ranks"][0]["running"].get<bool>());
  EXPECT_EQ(run.wait_for_shim(), 0);
  EXPECT_EQ(run.exits()[0].exit_code, rank_protocol::kExitStopped);
  EXPECT_EQ(run.exits()[0].stop_reason, "ORPHANED");
}

// A daemon without a controller counts that silence too when it renews the lease.
TEST(ShimTest, ADaemonWithoutControllerDoesNotKeepOrphans) {
  Spec spec;
  spec.orphan_timeout_seconds = 60;
  RunFolder run(1, {}, spec);
  run.start_shim();
  Client client(run.path());
  start(client);
  client.ask({{"command", "lease"}, {"silence_milliseconds", 60'000}});
  EXPECT_EQ(run.wait_for_shim(), 0);
  EXPECT_EQ(run.exits()[0].stop_reason, "ORPHANED");
}

TEST(ShimTest, SigtermSaves) {
  RunFolder run(1, {});
  run.start_shim();
  Client client(run.path());
  start(client);
  ::kill(run.shim_pid(), SIGTERM);
  EXPECT_EQ(run.wait_for_shim(), 0);
  EXPECT_EQ(run.exits()[0].exit_code, rank_protocol::kExitStopped);
}

TEST(ShimTest, NamesTheProgramThatCannotStart) {
  Spec spec;
  spec.rank_binary = "/nowhere/titan-rank";
  RunFolder run(1, {}, spec);
  run.start_shim();
  Client client(run.path());
  const json answer = start(client);
  EXPECT_FALSE(answer["ok"].get<bool>());
  EXPECT_THAT(answer["error"].get<std::string>(), HasSubstr("/nowhere/titan-rank"));
  EXPECT_EQ(run.wait_for_shim(), 0);
}

// Junk hides no exit record, whether before or after it.
TEST(ShimTest, JunkAmongExitRecordsHidesNone) {
  const rank_protocol::TempFolder folder;
  ASSERT_TRUE(host::replace_file(folder.file("exits.jsonl"), "junk\n{\"rank\": 7}\ntorn").ok());
  absl::StatusOr<ExitLog> log = ExitLog::open(folder.file("."), 2);
  ASSERT_TRUE(log.ok());
  for (const int rank : {0, 1}) ASSERT_TRUE(log->append({.rank = rank, .exit_code = 3}).ok());
  std::string damage;
  const auto exits = read_exits(folder.file("."), &damage);
  ASSERT_TRUE(exits.ok()) << exits.status();
  ASSERT_EQ(exits->size(), 2u);
  EXPECT_EQ((*exits)[1].rank, 1);
  EXPECT_THAT(damage, HasSubstr("3 lines skipped"));
}

TEST(ShimTest, OneShimPerRunFolder) {
  RunFolder run(1, {});
  run.start_shim();
  const absl::StatusOr<std::unique_ptr<Shim>> second = Shim::create(run.path(), host::Descriptor());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(ShimTest, RefusesNonsenseOnTheSocket) {
  RunFolder run(1, {});
  run.start_shim();
  Client client(run.path());
  EXPECT_THAT(client.ask({{"command", "dance"}})["error"].get<std::string>(), HasSubstr("dance"));
  EXPECT_FALSE(client.ask({{"command", "start"}})["ok"].get<bool>());
  EXPECT_EQ(client.ask({{"command", "status"}})["state"], "prepared");
}

// 2 x 100,000 lines as fast as pipes allow: commands are answered meanwhile, memory stays small, and the newest lines
// stay.
TEST(ShimTest, FloodOfOutputBlocksNothing) {
  Spec spec;
  spec.log_max_bytes = 2 << 20;
  RunFolder run(2, {{"print", 100'000}, {"steps", -1}}, spec);
  run.start_shim();
  Client client(run.path());
  const int64_t begin = monotonic_nanos();
  start(client);
  int64_t slowest = 0;
  const std::string log = rank_protocol::log_path(run.path(), 0);
  ASSERT_TRUE(eventually([&] {
    const int64_t before = monotonic_nanos();
    client.ask({{"command", "status"}});
    slowest = std::max(slowest, monotonic_nanos() - before);
    const auto tail = read_log(log, -1, 1, 1 << 16);
    return tail.ok() && tail->data.rfind("line 99999 ", 0) == 0;
  }));
  RecordProperty("flood_ms", static_cast<int>((monotonic_nanos() - begin) / 1'000'000));
  RecordProperty("slowest_answer_us", static_cast<int>(slowest / 1000));
  EXPECT_LT(slowest, 1'000'000'000);
  const auto all = read_log(log, 0, 0, 64 << 20);
  ASSERT_TRUE(all.ok());
  EXPECT_LE(all->data.size(), 2 << 20);
  EXPECT_GT(all->dropped_bytes, 0);
  std::ifstream status(absl::StrCat("/proc/", run.shim_pid(), "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) {
      EXPECT_LT(std::atoi(line.c_str() + 6), 64 << 10) << line;
    }
  }
}

// A full disk loses log lines, not ranks, and space for exit records is reserved.
TEST(ShimTest, FullDiskBlocksNoRank) {
  Spec spec;
  spec.log_max_bytes = 64 << 20;
  RunFolder run(1, {{"print", 100'000}, {"steps", 2}}, spec);
  const std::string small = run.path() + "/small";
  ::mkdir(small.c_str(), 0755);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=2m") != 0) GTEST_SKIP() << "cannot mount a tmpfs here";
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } const unmount{small};
  for (const char* name : {"/spec.json", "/launch.json"}) {
    ASSERT_TRUE(host::replace_file(small + name, *host::read_file(run.path() + name)).ok());
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string binary = shim_binary();
    ::execl(binary.c_str(), binary.c_str(), "--spec", (small + "/spec.json").c_str(), nullptr);
    ::_exit(127);
  }
  ASSERT_TRUE(eventually([&] { return ::access((small + "/shim.json").c_str(), F_OK) == 0; }));
  Client client(small);
  start(client);
  const json exit = next_exit(client);
  EXPECT_EQ(exit["exit_code"], 0) << exit;
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  const auto exits = read_exits(small);
  ASSERT_TRUE(exits.ok());
  EXPECT_EQ(exits->size(), 1);
}

}  // namespace
}  // namespace titan::shim
