// Stands in for titan-rank: accepts the same flags, writes beacon and spool, and behaves as the "fake" member of the
// job config says:
//   steps (-1: endless), step_ms, exit_code, signal, print (lines), print_bytes (per line), child ("group" |
//   "session"), ignore_stop, error (text of a last error event), reason (of that event), no_beacon, burst (events per
//   step), trace_bytes (answers trace requests; a trace is this many letters t, and with 0 none is written),
//   loads (step that it reports as its start; it begins at 1 all the same), metrics (additional figures of each step),
//   measured (its own part of a step is the time that it took), save_bytes (written to the file "save" in the dump
//   folder by each requested save), save_ms (training stops so long for a save), run (a shell command before its
//   steps), eat_mib (memory that it allocates at step eat_at, by default before the first), wants_look (step at which
//   it waits until its shim has looked)
// "ranks": {"R": {...}} overrides members for one rank. Without "fake", TITAN_TEST_FAKE_RANK has it.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "common/rank_protocol/beacon.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"

namespace {

using nlohmann::json;
namespace protocol = titan::rank_protocol;

struct Flags {
  std::string config;
  std::string run_dir;
  std::string store;
  int rank = 0;
  int world = 0;
  int listen_fd = -1;
};

Flags parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* const value = argv[i + 1];
    if (name == "--config") flags.config = value;
    if (name == "--run-dir") flags.run_dir = value;
    if (name == "--store") flags.store = value;
    if (name == "--rank") flags.rank = std::atoi(value);
    if (name == "--world") flags.world = std::atoi(value);
    if (name == "--listen-fd") flags.listen_fd = std::atoi(value);
  }
  return flags;
}

int port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (fd < 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.sin_port);
}

int start_child(const std::string& kind) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (kind == "session") ::setsid();
  for (;;) ::pause();
}

// Allocates this much memory and never frees it.
void eat(size_t mebibytes) {
  for (size_t i = 0; i < mebibytes; ++i) {
    auto* const piece = static_cast<char*>(std::malloc(1 << 20));
    std::memset(piece, 1 + static_cast<int>(i % 100), 1 << 20);
  }
}

void print_lines(const json& fake) {
  const std::string filler(fake.value("print_bytes", 80), 'x');
  for (int i = 0; i < fake.value("print", 0); ++i) std::printf("line %d %s\n", i, filler.c_str());
  std::fflush(stdout);
}

// Answers a request for a trace after `step`.
void serve_trace(const Flags& flags, const json& fake, protocol::TraceRequest& words, int64_t step) {
  using protocol::TraceState;
  const auto set_state = [&](TraceState state) { words.state = static_cast<uint32_t>(state); };
  const uint64_t request = words.request;
  if (request != words.taken && step + 2 >= words.first_step) {
    words.recorded_first = std::max<int64_t>(words.first_step, step + 2);
    words.recorded_last = words.recorded_first + words.steps - 1;
    set_state(TraceState::kWaiting);
    words.taken = request;
  }
  if (request == 0 || request != words.taken) return;
  if (step + 1 == words.recorded_first) set_state(TraceState::kRecording);
  if (step != words.recorded_last) return;
  const auto bytes = fake["trace_bytes"].get<size_t>();
  if (bytes > 0) {
    const std::string path = protocol::trace_path(flags.run_dir, flags.rank, request);
    std::ofstream(path + ".new") << std::string(bytes, 't');
    std::filesystem::rename(path + ".new", path);  // The file gets its name once it is complete.
  }
  set_state(bytes > 0 ? TraceState::kWritten : TraceState::kFailed);
}

// Performs a requested save and returns its seconds, which count in the next step's figures.
double save(protocol::SpoolWriter& spool, const json& fake, const std::string& dump_folder, int64_t step) {
  const std::chrono::milliseconds save_duration(fake.value("save_ms", 0));
  std::this_thread::sleep_for(save_duration);
  const auto bytes = fake.value("save_bytes", size_t{0});
  bool good = true;
  if (bytes > 0) {
    std::ofstream file(dump_folder + "/save", std::ios::trunc);
    file << std::string(bytes, 's') << std::flush;
    good = file.good();
  }
  if (good) {
    (void)spool.append(protocol::event::kCommitted, {{"step", step}, {"full", true}, {"seconds", 0.0}});
  } else {
    (void)spool.append(protocol::event::kCheckpointFailed, {{"step", step}, {"reason", "cannot write the file"}});
  }
  return std::chrono::duration<double>(save_duration).count();
}

int end(protocol::SpoolWriter& spool, const json& fake, int64_t step) {
  if (fake.contains("error")) {
    (void)spool.append(protocol::event::kError,
                       {{"class", "user"}, {"reason", fake.value("reason", "FAKE")}, {"message", fake["error"]}});
  } else {
    (void)spool.append(protocol::event::kFinished, {{"step", step}});
  }
  if (fake.contains("signal")) {
    const int number = fake["signal"].get<int>();
    ::signal(number, SIG_DFL);  // A sanitizer's handler would write its report into the log.
    ::kill(::getpid(), number);
  }
  return fake.value("exit_code", 0);
}

}  // namespace

int main(int argc, char** argv) {
  const Flags flags = parse(argc, argv);
  const auto launch = protocol::read_launch(flags.config);
  if (!launch.ok()) return std::fprintf(stderr, "%s\n", launch.status().ToString().c_str()), protocol::kExitBadConfig;
  const char* const fallback = std::getenv("TITAN_TEST_FAKE_RANK");
  json fake = launch->config.value("fake", json::parse(fallback == nullptr ? "{}" : fallback));
  if (fake.contains("ranks")) fake.update(fake["ranks"].value(std::to_string(flags.rank), json::object()));
  auto spool = protocol::SpoolWriter::open(protocol::spool_path(flags.run_dir, flags.rank));
  if (!spool.ok()) return protocol::kExitStorage;
  std::unique_ptr<protocol::Beacon> beacon;
  if (!fake.contains("no_beacon")) {
    beacon = *protocol::Beacon::create(protocol::beacon_path(flags.run_dir, flags.rank), flags.rank);
  }
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  json started = {{"pid", ::getpid()},
                  {"port", port_of(flags.listen_fd)},
                  {"store", flags.store},
                  {"world", flags.world},
                  {"threads", threads == nullptr ? "" : threads}};
  if (fake.contains("child")) started["child"] = start_child(fake["child"]);
  (void)spool->append(protocol::event::kStarted, started);
  std::printf("rank %d of %d is up\n", flags.rank, flags.world);
  print_lines(fake);
  const auto eats_at = [&fake](int64_t step) {
    return fake.contains("eat_mib") && step == fake.value("eat_at", int64_t{0});
  };
  if (eats_at(0)) eat(fake["eat_mib"]);
  if (fake.contains("run")) std::printf("ran: %d\n", std::system(fake["run"].get<std::string>().c_str()));
  std::fflush(stdout);
  if (fake.contains("loads")) {
    (void)spool->append(protocol::event::kLoaded, {{"step", fake["loads"]}, {"source", "checkpoint"}});
  }
  const json more = fake.value("metrics", json::object());
  const int64_t steps = fake.value("steps", int64_t{-1});
  const std::string dump_folder = launch->config.value(json::json_pointer("/job/dump_folder"), std::string());
  double saved = 0;
  if (beacon != nullptr) beacon->enter(protocol::Phase::kForward);
  if (fake.contains("trace_bytes")) beacon->page().trace.takes_requests = 1;
  for (int64_t step = 1; steps < 0 || step <= steps; ++step) {
    const auto begun = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(fake.value("step_ms", 5)));
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
    if (eats_at(step)) eat(fake["eat_mib"]);
    for (int i = 0; i < fake.value("burst", 1); ++i) {
      json metrics = {{"loss", 1.0 / static_cast<double>(step)}};
      metrics.update(more);
      if (const double save_seconds = std::exchange(saved, 0.0); save_seconds > 0)
        metrics["time_metrics/checkpoint(s)"] = save_seconds;
      (void)spool->append(protocol::event::kStep, {{"step", step}, {"metrics", std::move(metrics)}});
    }
    if (beacon != nullptr && step == fake.value("wants_look", int64_t{-1})) {
      beacon->page().stacks_wanted = 1;
      while (beacon->page().stacks_taken == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (step == fake.value("shrinks_beacon", int64_t{-1})) {
      beacon.reset();
      std::filesystem::resize_file(protocol::beacon_path(flags.run_dir, flags.rank), 0);
    }
    if (beacon == nullptr) continue;
    beacon->page().step = step;
    beacon->page().counter += 1;
    beacon->page().own_nanos += fake.contains("measured") ? took.count() : 1'000'000;
    beacon->page().own_steps += 1;
    if (fake.contains("trace_bytes")) serve_trace(flags, fake, beacon->page().trace, step);
    const uint32_t pending = beacon->page().command.load();
    if (pending == beacon->page().command_seen) continue;
    beacon->page().command_seen = pending;
    const auto command = static_cast<protocol::BeaconCommand>(pending);
    if (command == protocol::BeaconCommand::kCheckpoint) {
      saved = save(*spool, fake, dump_folder, step);
    }
    if (command == protocol::BeaconCommand::kStopAndSave && !fake.contains("ignore_stop")) {
      (void)spool->append(protocol::event::kStopped, {{"step", step}});
      return protocol::kExitStopped;
    }
  }
  return end(*spool, fake, steps);
}
