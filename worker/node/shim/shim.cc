#include "worker/node/shim/shim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/stacks.h"

namespace titan::shim {
namespace {

using nlohmann::json;
using rank_protocol::Command;

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int kBeaconRetryMilliseconds = 20;
constexpr int kFlushMilliseconds = 200;
constexpr int kStrayPatienceMilliseconds = 2000;
constexpr int kStrayPauseMilliseconds = 1;
constexpr int64_t kWishesEvery = 100 * kMilli;
constexpr int64_t kDiesWithin = 30 * kSecond;  // A process with much memory, once it is killed.
constexpr int64_t kStacksPatienceMilliseconds = 4000;
constexpr int64_t kStacksFresh = 10 * kSecond;

// Of a request: a hundred years at most, to which the time may be added. Throws for what is no number.
int64_t milliseconds_in(const json& request, const char* member) {
  constexpr int64_t kMost = int64_t{100} * 365 * 24 * 3600 * 1000;
  return std::clamp<int64_t>(request.value(member, int64_t{0}), 0, kMost);
}

json failure(const absl::Status& status) { return {{"ok", false}, {"error", std::string(status.message())}}; }

void say(const std::string& text) { std::fprintf(stderr, "titan-shim: %s\n", text.c_str()); }

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  return set;
}

absl::Status write_command(rank_protocol::BeaconReader& beacon, Command wanted) {
  TITAN_RETURN_IF_ERROR(beacon.look());
  const rank_protocol::BeaconPage& page = beacon.page();
  const auto before = static_cast<Command>(page.command.load());
  if (before == Command::kStopAndSave) return absl::OkStatus();
  if (before != wanted) return beacon.write(page.command, static_cast<uint32_t>(wanted));
  // Once more. A request that the rank has not taken yet is the same request.
  if (page.command_seen.load() != page.command.load()) return absl::OkStatus();
  return beacon.write(page.command_seen, uint32_t{0});
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

Shim::Shim(std::string run_folder, Spec spec, host::Descriptor lock, Server server, ExitLog exits)
    : run_folder_(std::move(run_folder)),
      spec_(std::move(spec)),
      lock_(std::move(lock)),
      server_(std::move(server)),
      exits_(std::move(exits)),
      oom_(spec_.group) {
  for (const int rank : spec_.ranks) ranks_.push_back({rank});
  oom_seen_ = oom_.read();
  orphan_at_ = monotonic_nanos() + static_cast<int64_t>(spec_.orphan_timeout_seconds * kSecond);
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
    if (!made.ok()) say(absl::StrCat("the ranks have no control group of their own: ", made.message()));
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
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // What a rank leaves behind becomes ours to end.
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
        stop(/*save=*/true, static_cast<int64_t>(spec_.orphan_grace_seconds * 1000), "SIGTERM to the shim");
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
      stop(request.value("save", false), milliseconds_in(request, "grace_milliseconds"), request.value("reason", ""));
      return {{"ok", true}};
    }
    if (command == "checkpoint") {
      order(Command::kCheckpoint);
      return {{"ok", true}};
    }
    if (command == "stacks") return take_stacks(request.value("patience_milliseconds", kStacksPatienceMilliseconds));
    if (command == "lease") {
      // The daemon passes on how long it has been without its controller: a node cut off from the controller is
      // orphaned too.
      const int64_t silence = milliseconds_in(request, "silence_milliseconds") * kMilli;
      orphan_at_ = monotonic_nanos() - silence + static_cast<int64_t>(spec_.orphan_timeout_seconds * kSecond);
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
  const absl::Status saved = host::replace_file(run_folder_ + "/shim.json", text);
  if (!saved.ok()) say(saved.ToString());
}

json Shim::start(const std::string& store_host, int store_port) {
  if (state_ == State::kPrepared && !stop_reason_.empty()) {
    return failure(absl::FailedPreconditionError(absl::StrCat("the attempt was stopped: ", stop_reason_)));
  }
  if (state_ != State::kPrepared) return status();
  state_ = State::kRunning;
  const std::string store = absl::StrCat(spec_.alone ? spec_.address : store_host, ":", store_port);
  for (Rank& rank : ranks_) {
    const absl::Status started = start_one(rank, store);
    if (started.ok()) continue;
    kill_all("LAUNCH_FAILED");
    say(started.ToString());
    return failure(started);
  }
  store_.socket.reset();  // Rank 0 has it now: when it dies, the port closes.
  save_state();
  return status();
}

absl::Status Shim::start_one(Rank& rank, const std::string& store) {
  TITAN_ASSIGN_OR_RETURN(LogWriter log,
                         LogWriter::open(rank_protocol::log_path(run_folder_, rank.rank), spec_.log_max_bytes));
  RankCommand command;
  command.binary = spec_.rank_binary;
  command.arguments = {"--config",  rank_folder() + "/launch.json",
                       "--rank",    absl::StrCat(rank.rank),
                       "--world",   absl::StrCat(spec_.world),
                       "--store",   store,
                       "--run-dir", rank_folder()};
  command.user = spec_.user;
  command.folder = spec_.rank_folder;
  const host::Descriptor group = group_entrance(spec_.group);
  command.group_fd = group.get();
  command.environment = spec_.environment;
  command.environment[kRunFolderVariable] = run_folder_;
  command.environment[rank_protocol::kStacksVariable] = "1";
  if (rank.rank == 0 && store_.socket) {
    command.listen_fd = store_.socket.get();
    command.arguments.push_back("--listen-fd");
    command.arguments.push_back(absl::StrCat(command.listen_fd));
  }
  TITAN_ASSIGN_OR_RETURN(rank.process, start_rank(command));
  rank.running = true;
  look_into_group(rank.process.pid);
  logs_.add(rank.rank, std::move(rank.process.output), std::move(log));
  return absl::OkStatus();
}

// What could not enter is not counted there.
void Shim::look_into_group(pid_t pid) {
  if (!spec_.group) return;
  const std::vector<pid_t> in_it = group_processes(spec_.group.folder);
  if (std::find(in_it.begin(), in_it.end(), pid) != in_it.end() || !alive(pid, start_ticks(pid))) return;
  say(absl::StrCat("process ", pid, " could not enter the control group ", spec_.group.folder));
  oom_ = OutOfMemoryCounter({});
  oom_seen_ = oom_.read();
}

void Shim::stop(bool save, int64_t grace_milliseconds, const std::string& reason) {
  if (stop_reason_.empty()) stop_reason_ = reason.empty() ? "STOPPED" : reason;
  if (state_ == State::kPrepared) return;  // end_if_over() ends it.
  if (grace_milliseconds <= 0) return kill_all(stop_reason_);
  const int64_t kill_at = monotonic_nanos() + grace_milliseconds * kMilli;
  kill_at_ = kill_at_ == 0 ? kill_at : std::min(kill_at_, kill_at);  // Asking again never gives more time.
  if (save) return order(Command::kStopAndSave);
  for (const Rank& rank : ranks_) {
    if (rank.running) ::kill(rank.process.pid, SIGTERM);
  }
}

void Shim::kill_all(const std::string& reason) {
  if (stop_reason_.empty()) stop_reason_ = reason;
  killed_ = true;
  for (const Rank& rank : ranks_) {
    if (rank.running) ::kill(-rank.process.pid, SIGKILL);
  }
}

void Shim::order(Command command) {
  for (Rank& rank : ranks_) {
    if (rank.running && rank.wanted != Command::kStopAndSave) rank.wanted = command;
  }
  write_commands();
}

json Shim::take_stacks(int64_t patience_milliseconds) {
  if (stacks_pid_ != 0) return {{"ok", true}};
  if (stacks_at_ != 0 && monotonic_nanos() - stacks_at_ < kStacksFresh) {
    server_.broadcast({{"event", "stacks"}});
    return {{"ok", true}};
  }
  std::vector<StacksOf> running;
  for (const Rank& rank : ranks_) {
    if (rank.running) running.push_back({rank.process.pid, rank.rank});
  }
  if (running.empty()) return failure(absl::FailedPreconditionError("no rank runs"));
  const absl::StatusOr<pid_t> started = start_stacks(stacks_program(), run_folder_, running, patience_milliseconds);
  if (!started.ok()) return failure(started.status());
  stacks_pid_ = *started;
  return {{"ok", true}};
}

// Ranks that a collective has failed wait to be looked at.
// A kill for memory after which no rank ends was that of another process, and is not for a rank that is killed later.
void Shim::look_for_kills() {
  const int64_t kills = oom_.read(), now = monotonic_nanos();
  if (std::exchange(oom_looked_, kills) != kills) oom_changed_at_ = now;
  if (now - oom_changed_at_ > kDiesWithin) oom_seen_ = std::max(oom_seen_, kills);
}

void Shim::look_for_wishes() {
  wishes_at_ = monotonic_nanos() + kWishesEvery;
  if (stacks_pid_ != 0) return;
  for (Rank& rank : ranks_) {
    if (!rank.running || !open_beacon(rank) || !rank.beacon->look().ok()) continue;
    const rank_protocol::BeaconPage& page = rank.beacon->page();
    if (page.stacks_wanted.load() == 0 || page.stacks_taken.load() != 0) continue;
    const json begun = take_stacks(kStacksPatienceMilliseconds);
    if (!begun.value("ok", false)) say(absl::StrCat("stacks: ", begun.value("error", "")));
    if (stacks_pid_ == 0) end_stacks(0);  // Nobody is to wait for what cannot be told, or was told a moment ago.
    return;
  }
}

void Shim::end_stacks(int wait_status) {
  const bool is_all = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  if (std::exchange(stacks_pid_, 0) != 0) stacks_at_ = monotonic_nanos();
  for (Rank& rank : ranks_) {
    if (!rank.running || !open_beacon(rank)) continue;
    (void)rank.beacon->write(rank.beacon->page().stacks_taken, uint32_t{1});
  }
  json message = {{"event", "stacks"}};
  if (!is_all) message["error"] = "titan-stacks could not look at all ranks";
  server_.broadcast(message);
}

// Whether the rank has one by now.
bool Shim::open_beacon(Rank& rank) const {
  if (rank.beacon != nullptr) return true;
  auto beacon = rank_protocol::BeaconReader::open(rank_protocol::beacon_path(rank_folder(), rank.rank));
  if (beacon.ok()) rank.beacon = *std::move(beacon);
  return rank.beacon != nullptr;
}

// A rank that has no beacon yet, or none that can be written, gets its command as soon as it has one.
void Shim::write_commands() {
  for (Rank& rank : ranks_) {
    if (rank.wanted == Command::kNone || !rank.running) continue;
    if (!open_beacon(rank)) continue;
    if (write_command(*rank.beacon, rank.wanted).ok()) rank.wanted = Command::kNone;
  }
}

void Shim::reap() {
  for (;;) {
    siginfo_t ended{};
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& candidate) {
      return candidate.running && candidate.process.pid == ended.si_pid;
    });
    // Its children in the same group end with it; while it is a zombie, the group's number cannot be another's.
    if (rank != ranks_.end()) ::kill(-ended.si_pid, SIGKILL);
    int wait_status = 0;
    if (::waitpid(ended.si_pid, &wait_status, 0) != ended.si_pid) continue;
    if (rank != ranks_.end()) record_exit(*rank, wait_status);
    if (ended.si_pid == stacks_pid_) end_stacks(wait_status);
  }
}

void Shim::record_exit(Rank& rank, int wait_status) {
  rank.running = false;
  auto record = std::make_unique<rank_protocol::RankExit>();
  record->rank = rank.rank;
  record->pid = rank.process.pid;
  record->start_ticks = rank.process.start_ticks;
  record->time_ns = unix_nanos();
  if (WIFSIGNALED(wait_status)) {
    record->exit_code = -1;
    record->signal = WTERMSIG(wait_status);
  } else {
    record->exit_code = WEXITSTATUS(wait_status);
  }
  const int64_t oom_now = oom_.read();
  record->out_of_memory = record->exit_code == rank_protocol::kExitOutOfMemory ||
                          (record->signal == SIGKILL && oom_now > oom_seen_ && !killed_);  // Else it may be ours.
  if (record->signal == SIGKILL && oom_now > oom_seen_) ++oom_seen_;  // Each kill is counted for one rank.
  if (record->out_of_memory) record->memory_limit_bytes = spec_.group.limit_bytes;
  record->stop_reason = stop_reason_;
  const std::string last_line = logs_.finish(rank.rank);
  record->message = last_error(rank_folder(), rank.rank);
  if (record->message.empty()) record->message = last_line;
  // Told before it is synced: a subscriber acts within milliseconds, and the file outlives a kill of this process
  // anyway.
  const absl::Status appended = exits_.append(*record);
  rank.unrecorded = !appended.ok();
  if (!appended.ok()) {
    say(appended.ToString());
    retry_at_ = monotonic_nanos() + kSecond;
  }
  json message = {{"event", "exit"}, {"exit", rank_protocol::exit_to_json(*record)}};
  rank.exit = std::move(record);
  server_.broadcast(message);
  if (appended.ok()) (void)exits_.sync();
}

void Shim::retry_records() {
  retry_at_ = 0;
  for (Rank& rank : ranks_) {
    if (!rank.unrecorded) continue;
    rank.unrecorded = !exits_.append(*rank.exit).ok();
    if (rank.unrecorded) retry_at_ = monotonic_nanos() + kSecond;
  }
}

// Descendants that left their rank's process group became children of this process when their parent died. One that
// SIGKILL does not end, for it waits in the kernel or somebody traces it, is left behind: all ranks are gone, and the
// attempt must be seen to end.
void Shim::kill_strays() {
  const int64_t give_up = monotonic_nanos() + kStrayPatienceMilliseconds * kMilli;
  for (;;) {
    const absl::StatusOr<std::string> children =
        host::read_file(absl::StrCat("/proc/self/task/", ::getpid(), "/children"));
    const bool in_group = spec_.group && kill_group(spec_.group.folder) > 0;
    if ((!children.ok() || children->empty()) && !in_group) return;
    for (size_t at = 0; children.ok() && at < children->size(); at = children->find(' ', at) + 1) {
      ::kill(std::atoi(children->c_str() + at), SIGKILL);
      if (children->find(' ', at) == std::string::npos) break;
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (monotonic_nanos() >= give_up)
      return say(absl::StrCat("processes that no signal ends are left behind: ", children.value_or("")));
    ::poll(nullptr, 0, kStrayPauseMilliseconds);
  }
}

bool Shim::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

bool Shim::commands_waiting() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.running && rank.wanted != Command::kNone; });
}

void Shim::check_deadlines() {
  const int64_t now = monotonic_nanos();
  if (commands_waiting()) write_commands();
  if (state_ == State::kRunning && now >= wishes_at_) {
    look_for_wishes();
    look_for_kills();
  }
  if (kill_at_ != 0 && now >= kill_at_) kill_all(stop_reason_);
  if (retry_at_ != 0 && now >= retry_at_) retry_records();
  if (now >= orphan_at_ && stop_reason_.empty()) {
    say(absl::StrCat("no daemon renewed the lease for ", spec_.orphan_timeout_seconds, " s: saving and stopping"));
    stop(/*save=*/true, static_cast<int64_t>(spec_.orphan_grace_seconds * 1000), "ORPHANED");
  }
}

int Shim::wait_milliseconds() const {
  int64_t next = stop_reason_.empty() ? orphan_at_ : INT64_MAX;
  if (kill_at_ != 0 && any_running()) next = std::min(next, kill_at_);
  if (retry_at_ != 0) next = std::min(next, retry_at_);
  if (commands_waiting()) next = std::min(next, monotonic_nanos() + kBeaconRetryMilliseconds * kMilli);
  if (state_ == State::kRunning && any_running()) next = std::min(next, wishes_at_);
  if (next == INT64_MAX) return -1;
  return static_cast<int>(std::clamp<int64_t>((next - monotonic_nanos()) / kMilli + 1, 0, 60'000));
}

void Shim::end_if_over() {
  const bool over = state_ == State::kRunning ? !any_running() : !stop_reason_.empty();
  const bool unrecorded = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.unrecorded; });
  if (!over || unrecorded) return;
  kill_strays();
  if (spec_.group) (void)remove_group(spec_.group.folder);  // Else the daemon does, once the attempt is forgotten.
  state_ = State::kEnded;
  save_state();
  json message = status();
  message["event"] = "ended";
  server_.broadcast(message);
}

}  // namespace titan::shim
