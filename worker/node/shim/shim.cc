#include "worker/node/shim/shim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "worker/node/shim/launching.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/say.h"

namespace titan::shim {
namespace {

using nlohmann::json;

constexpr int kBeaconRetryMilliseconds = 20;
constexpr int kFlushMilliseconds = 200;

// Reads a member of a request, clamped so that adding it to now cannot overflow. Throws if it is not a number.
int64_t milliseconds_in(const json& request, const char* member) {
  constexpr int64_t kMost = int64_t{100} * 365 * 24 * 3600 * 1000;
  return std::clamp<int64_t>(request.value(member, int64_t{0}), 0, kMost);
}

json failure(const absl::Status& status) { return {{"ok", false}, {"error", std::string(status.message())}}; }

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

const char* Shim::name(State state) {
  switch (state) {
    case State::kPrepared:
      return "prepared";
    case State::kRunning:
      return "running";
    case State::kEnded:
      return "ended";
  }
  return "unknown";
}

Shim::Shim(const std::string& run_folder, Spec spec, host::Descriptor lock, Server server, ExitLog exits)
    : spec_(std::move(spec)),
      folders_{run_folder, spec_.rank_folder.empty() ? run_folder : spec_.rank_folder},
      lock_(std::move(lock)),
      server_(std::move(server)),
      exits_{std::move(exits)},
      memory_kills_{OutOfMemoryCounter(spec_.group)} {
  for (const int rank : spec_.ranks) ranks_.push_back({rank});
  renew_lease(stopping_, spec_.orphan_timeout_seconds, /*silence_nanoseconds=*/0);
}

absl::StatusOr<std::unique_ptr<Shim>> Shim::create(const std::string& run_folder, host::Descriptor control) {
  host::Descriptor lock(::open((run_folder + "/shim.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock) return errno_status(errno, absl::StrCat("open ", run_folder, "/shim.lock"));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("another shim serves ", run_folder));
  }
  TITAN_ASSIGN_OR_RETURN(const std::string text, host::read_file(run_folder + "/spec.json"));
  const json parsed = json::parse(text, nullptr, false);
  TITAN_ASSIGN_OR_RETURN(Spec spec, spec_from_json(parsed));
  if (spec.group) {
    const absl::Status made = make_group(spec.group);
    if (!made.ok()) say(absl::StrCat("the ranks have no separate control group: ", made.message()));
    if (!made.ok()) spec.group = {};
  }
  TITAN_ASSIGN_OR_RETURN(Server server, Server::open(run_folder));
  TITAN_ASSIGN_OR_RETURN(ExitLog exits, ExitLog::open(run_folder, static_cast<int>(spec.ranks.size())));
  std::unique_ptr<Shim> shim(
      new Shim(run_folder, std::move(spec), std::move(lock), std::move(server), std::move(exits)));
  if (shim->spec_.leader) {
    TITAN_ASSIGN_OR_RETURN(shim->store_, listen_on(shim->spec_.address));
  }
  const sigset_t set = watched_signals();
  shim->signals_ = host::Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!shim->signals_) return errno_status(errno, "signalfd");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // Makes orphaned descendants of ranks children of this process, which ends them.
  shim->save_state();
  if (control) shim->server_.adopt(std::move(control));
  json ready = shim->status();
  ready["event"] = "ready";
  shim->server_.broadcast(ready);
  return shim;
}

void Shim::run() {
  while (state_ != State::kEnded) {
    std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0}};
    server_.add_waits(waits);
    ::poll(waits.data(), waits.size(), wait_milliseconds());
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGTERM) {
        stop(orphan_stop(), "SIGTERM to the shim");
      }
    }
    reap();
    server_.handle(waits, [this](const json& request) { return answer(request); });
    check_deadlines();
    end_if_over();
  }
  server_.flush(kFlushMilliseconds);
}

json Shim::answer(const json& request) {
  try {
    const std::string command = request.value("command", "");
    if (command == "status" || command == "subscribe") return status();
    if (command == "start") return start(request.at("store_host"), request.at("store_port"));
    if (command == "stop") {
      stop({request.value("save", false), milliseconds_in(request, "grace_milliseconds")}, request.value("reason", ""));
      return {{"ok", true}};
    }
    if (command == "checkpoint") {
      order(ranks_, rank_protocol::BeaconCommand::kCheckpoint, folders_.rank);
      return {{"ok", true}};
    }
    if (command == "stacks") {
      const int64_t timeout = request.value("patience_milliseconds", kStacksTimeoutMilliseconds);
      const absl::Status begun = take_stacks(stacks_, ranks_, server_, folders_.run, timeout);
      if (!begun.ok()) return failure(begun);
      return {{"ok", true}};
    }
    if (command == "lease") {
      // The daemon reports how long it has had no contact with its controller: a node without a controller is orphaned
      // too.
      renew_lease(stopping_, spec_.orphan_timeout_seconds, milliseconds_in(request, "silence_milliseconds") * kMilli);
      const LogPump::Counts counts = logs_.counts();
      return {{"ok", true}, {"log_dropped_bytes", counts.dropped_bytes}, {"log_lost_bytes", counts.lost_bytes}};
    }
    return {{"ok", false}, {"error", absl::StrCat("unknown command '", command, "'")}};
  } catch (const json::exception& error) {
    return {{"ok", false}, {"error", error.what()}};
  }
}

json Shim::status() const {
  json ranks = json::array();
  for (const Rank& rank : ranks_) {
    json item = {{"rank", rank.rank},
                 {"pid", rank.process.pid},
                 {"start_ticks", rank.process.start_ticks},
                 {"running", rank.running}};
    if (rank.exit != nullptr) item["exit"] = rank_protocol::exit_to_json(*rank.exit);
    ranks.push_back(std::move(item));
  }
  return {{"ok", true},
          {"state", name(state_)},
          {"job_uid", spec_.job_uid},
          {"attempt", spec_.attempt},
          {"pid", ::getpid()},
          {"start_ticks", start_ticks(::getpid())},
          {"boot_id", boot_id()},
          {"store_port", store_.port},
          {"ranks", std::move(ranks)}};
}

void Shim::save_state() const {
  // A rank may have printed anything, and its message may be cut inside a character.
  const std::string text = status().dump(-1, ' ', false, json::error_handler_t::replace);
  const absl::Status saved = host::replace_file(folders_.run + "/shim.json", text);
  if (!saved.ok()) say(saved.ToString());
}

json Shim::start(const std::string& store_host, int store_port) {
  if (state_ == State::kPrepared && !stopping_.reason.empty()) {
    return failure(absl::FailedPreconditionError(absl::StrCat("the attempt was stopped: ", stopping_.reason)));
  }
  if (state_ != State::kPrepared) return status();
  state_ = State::kRunning;
  const std::string store = absl::StrCat(spec_.alone ? spec_.address : store_host, ":", store_port);
  for (Rank& rank : ranks_) {
    const absl::Status started = launch(rank, {spec_, folders_, store, store_.socket, memory_kills_, logs_});
    if (started.ok()) continue;
    kill_ranks(stopping_, ranks_, "LAUNCH_FAILED");
    say(started.ToString());
    return failure(started);
  }
  store_.socket.reset();  // Rank 0 has inherited it. When rank 0 dies, the port closes.
  save_state();
  return status();
}

void Shim::stop(const StopOptions& options, const std::string& reason) {
  give_reason(stopping_, reason.empty() ? "STOPPED" : reason);
  if (state_ == State::kPrepared) return;  // end_if_over() ends it.
  stop_ranks(stopping_, ranks_, options, folders_.rank);
}

// Returns how the ranks are stopped when no daemon requests it.
StopOptions Shim::orphan_stop() const {
  return {.save = true, .grace_milliseconds = static_cast<int64_t>(spec_.orphan_grace_seconds * 1000)};
}

void Shim::reap() {
  while (const std::optional<EndedChild> ended = reap_child(ranks_)) {
    if (ended->rank != nullptr) record_exit(*ended->rank, ended->wait_status);
    if (ended->pid == stacks_.pid) end_stacks(stacks_, ranks_, server_, folders_.rank, ended->wait_status);
  }
}

void Shim::record_exit(Rank& rank, int wait_status) {
  rank.running = false;
  rank.exit = std::make_unique<rank_protocol::RankExit>(
      exit_of(rank, wait_status, {stopping_, spec_.group, folders_.rank, memory_kills_, logs_}));
  // Reports the exit before syncing it: a subscriber acts within milliseconds, and the file survives a kill of this
  // process anyway.
  const absl::Status appended = append_exit(exits_, rank);
  server_.broadcast({{"event", "exit"}, {"exit", rank_protocol::exit_to_json(*rank.exit)}});
  if (appended.ok()) (void)exits_.log.sync();
}

void Shim::check_deadlines() {
  const int64_t now = monotonic_nanos();
  if (commands_waiting(ranks_)) write_commands(ranks_, folders_.rank);
  if (state_ == State::kRunning && now >= stacks_.look_at) {
    check_stack_requests(stacks_, ranks_, server_, folders_);
    check_oom_kills(memory_kills_);
  }
  if (stopping_.kill_at != 0 && now >= stopping_.kill_at) kill_ranks(stopping_, ranks_, stopping_.reason);
  if (exits_.retry_at != 0 && now >= exits_.retry_at) retry_records(exits_, ranks_);
  if (is_orphaned(stopping_, now)) {
    say(absl::StrCat("no daemon renewed the lease for ", spec_.orphan_timeout_seconds, " s: saving and stopping"));
    stop(orphan_stop(), "ORPHANED");
  }
}

int Shim::wait_milliseconds() const {
  int64_t next = stopping_.reason.empty() ? stopping_.orphan_at : INT64_MAX;
  if (stopping_.kill_at != 0 && any_running(ranks_)) next = std::min(next, stopping_.kill_at);
  if (exits_.retry_at != 0) next = std::min(next, exits_.retry_at);
  if (commands_waiting(ranks_)) next = std::min(next, monotonic_nanos() + kBeaconRetryMilliseconds * kMilli);
  if (state_ == State::kRunning && any_running(ranks_)) next = std::min(next, stacks_.look_at);
  if (next == INT64_MAX) return -1;
  return static_cast<int>(std::clamp<int64_t>((next - monotonic_nanos()) / kMilli + 1, 0, 60'000));
}

void Shim::end_if_over() {
  const bool over = state_ == State::kRunning ? !any_running(ranks_) : !stopping_.reason.empty();
  if (!over || any_unrecorded(ranks_)) return;
  kill_strays(spec_.group);
  if (spec_.group) (void)remove_group(spec_.group.folder);  // If it fails, the daemon removes it later.
  state_ = State::kEnded;
  save_state();
  json message = status();
  message["event"] = "ended";
  server_.broadcast(message);
}

}  // namespace titan::shim
