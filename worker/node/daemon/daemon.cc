#include "worker/node/daemon/daemon.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/host/signals.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/daemon/attempt_json.h"
#include "worker/node/daemon/rank_answers.h"
#include "worker/node/daemon/run_folder.h"
#include "worker/node/shim/process.h"

namespace titan::daemon {
namespace {

Now now() { return {absl::Nanoseconds(shim::monotonic_nanos()), absl::FromUnixNanos(shim::unix_nanos())}; }

node::NodeConfig make_config(const DaemonOptions& options, const Resources& resources, const StateFolder& state) {
  node::NodeConfig config;
  config.node = options.node;
  config.address = options.address;
  config.version = TITAN_VERSION;
  config.instance = state.instance();
  config.boot_id = shim::boot_id();
  config.labels = options.labels;
  config.adopt_cluster = options.adopt_cluster;
  config.stop_ranks_on_exit = options.stop_ranks_on_exit;
  config.stop_grace = options.stop_grace;
  config.token_timeout = absl::Nanoseconds(static_cast<int64_t>(options.token_timeout_seconds * 1e9));
  config.resources.set_device(resources.device);
  config.resources.set_devices(resources.devices);
  config.resources.set_cpu_cores(resources.cpu_cores);
  config.resources.set_memory_bytes(resources.memory_bytes);
  config.resources.set_device_model(resources.device_model);
  config.resources.set_device_memory_bytes(resources.device_memory_bytes);
  return config;
}

void warn_unknown_memory(const Resources& resources, journal::Journal& journal) {
  if (resources.memory_unknown.empty()) return;
  journal.write(
      journal::Level::kWarning, resources.driver_hangs ? "GpuDriverHangs" : "MemoryUnknown",
      absl::StrCat("the devices' memory is unknown, so jobs are not checked against it: ", resources.memory_unknown,
                   resources.driver_hangs ? ". Ranks on this node may hang, too: check `nvidia-smi`, or restart the "
                                            "machine and then titan-worker, which checks only when it starts"
                                          : ""));
}

// Finds where control groups can be created. None: they are not available, which is logged, and is an error only if a
// memory limit was requested.
absl::StatusOr<std::optional<shim::GroupHome>> find_groups(const DaemonOptions& options, const StateFolder& state,
                                                           journal::Journal& journal) {
  const absl::StatusOr<shim::GroupHome> home =
      shim::find_group_home({.is_service = std::getenv("NOTIFY_SOCKET") != nullptr});
  if (!home.ok() && options.memory_per_rank_bytes > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--memory-per-rank needs control groups, which are not available: ", home.status().message()));
  }
  if (!home.ok()) {
    journal.write(journal::Level::kInfo, "NoRankGroups",
                  absl::StrCat("ranks have no separate control groups, so a rank that runs out of memory may be "
                               "mistaken for another: ",
                               home.status().message()));
    return std::nullopt;
  }
  std::error_code error;  // Remove groups of attempts whose shim and daemon were killed.
  for (const auto& item : std::filesystem::directory_iterator(home->folder, error)) {
    if (item.path().filename().string().rfind(group_prefix(state), 0) == 0)
      (void)shim::remove_group(item.path().string());
  }
  return *home;
}

constexpr absl::Duration kLookAtState = absl::Seconds(1);
constexpr absl::Duration kStateTimeout = absl::Seconds(10);  // For a disk that does not answer.
// Below the first limit the node accepts no more ranks; at the second it accepts them again. What one attempt writes
// fits between them, so that the node does not alternate.
constexpr int64_t kMinSpace = 4 << 20, kEnoughSpace = 8 << 20;
constexpr absl::Duration kLookAtFolders = absl::Seconds(10);
constexpr absl::Duration kLookAtGpus = absl::Seconds(5);

// Returns why no rank can be started here: a program or the state folder is not usable. Empty: ranks can be started.
std::string why_unusable(const StateFolder& state, int64_t least_space, const std::vector<std::string>& programs) {
  for (const std::string& program : programs) {
    if (::access(program.c_str(), X_OK) != 0)
      return absl::StrCat("cannot ", errno_status(errno, absl::StrCat("start ", program)).message());
  }
  const absl::Status same = state.check_same();
  if (absl::IsFailedPrecondition(same))
    return absl::StrCat(same.message(), ": restart titan-worker once the ranks that run here have ended");
  if (!same.ok()) return std::string(same.message());
  return std::string(state.check_writable(least_space).message());
}

std::optional<std::string> own_visible_devices() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? std::nullopt : std::optional<std::string>(visible);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::create(DaemonOptions options, const DaemonTelemetry& telemetry) {
  // Ranks of other users start in another folder.
  options.rank_binary = std::filesystem::absolute(options.rank_binary).string();
  TITAN_ASSIGN_OR_RETURN(Resources resources, find_resources(options.devices, {.visible = own_visible_devices()}));
  warn_unknown_memory(resources, telemetry.journal);
  for (const std::string& binary : {options.rank_binary, options.shim_binary}) {
    if (::access(binary.c_str(), X_OK) != 0)
      return errno_status(errno,
                          absl::StrCat("the program ", binary,
                                       " (titan-rank and titan-shim must be in titan-worker's folder; --rank-binary "
                                       "and --shim-binary name others)"));
  }
  if (!options.rank_user.empty()) {
    if (::geteuid() != 0) return absl::InvalidArgumentError("--rank-user requires titan-worker to run as root");
    TITAN_RETURN_IF_ERROR(shim::find_user(options.rank_user).status());
  }
  if (shim::boot_id().empty()) return absl::UnavailableError("/proc/sys/kernel/random/boot_id cannot be read");
  TITAN_ASSIGN_OR_RETURN(StateFolder folder, StateFolder::open(options.state));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> damaged, folder.repair_records());
  for (const std::string& text : damaged) telemetry.journal.write(journal::Level::kWarning, "RecordDamaged", text);
  TITAN_ASSIGN_OR_RETURN(const std::string former, folder.claim_for(options.node));
  if (!former.empty()) {
    telemetry.journal.write(journal::Level::kWarning, "NodeRenamed",
                            absl::StrCat("the state folder ", options.state, " belonged to node ", former,
                                         " and contains no attempts: it now belongs to node ", options.node, "; ",
                                         "`titanctl node delete ", former, "` removes the old name"));
  }
  TITAN_ASSIGN_OR_RETURN(const std::string cluster, folder.cluster());
  std::string damage;
  TITAN_ASSIGN_OR_RETURN(const int64_t epoch, folder.leader_epoch(&damage));
  if (!damage.empty()) telemetry.journal.write(journal::Level::kWarning, "LeaderEpochDamaged", damage);
  const auto state = std::make_shared<const StateFolder>(std::move(folder));
  TITAN_ASSIGN_OR_RETURN(std::optional<shim::GroupHome> groups, find_groups(options, *state, telemetry.journal));
  node::NodeCore core(make_config(options, resources, *state), cluster, epoch, now());
  return std::unique_ptr<Daemon>(
      new Daemon(std::move(options), telemetry, state, std::move(resources), std::move(groups), std::move(core)));
}

Daemon::Daemon(DaemonOptions options, const DaemonTelemetry& telemetry, std::shared_ptr<const StateFolder> state,
               Resources resources, std::optional<shim::GroupHome> groups, node::NodeCore core)
    : options_(std::move(options)),
      telemetry_(telemetry),
      state_(std::move(state)),
      resources_(std::move(resources)),
      groups_(std::move(groups)),
      watcher_(loop_),
      core_(std::move(core)),
      certificate_(options_.certificate),
      folders_(telemetry.metrics.folders()) {
  if (resources_.device == "cuda") gpus_.emplace(telemetry.metrics.gpus(), nvml::kLibrary, resources_.devices);
}

Daemon::~Daemon() = default;

void Daemon::run() {
  ::signal(SIGCHLD, SIG_IGN);  // Shims outlive the daemon; the kernel reaps them.
  ::signal(SIGPIPE, SIG_IGN);
  watch_signals();
  adopt_all();
  take_state_look(why_unusable(*state_, kMinSpace, programs()));  // Before the node registers and receives ranks.
  journal::Line begun{journal::Level::kInfo, "WorkerStarted", {}};
  begun.add("version", TITAN_VERSION).add("node", options_.node).add("device", resources_.device);
  begun.add("devices", absl::StrCat(resources_.devices)).add("cores", absl::StrCat(resources_.cpu_cores));
  begun.add("attempts", absl::StrCat(core_.state().attempts.size()));
  telemetry_.journal.write(begun.add("controllers", absl::StrJoin(options_.controllers, ",")));
  if (const int held = core_.devices_held(); held > resources_.devices) {
    telemetry_.journal.write(
        journal::Level::kWarning, "DevicesInUse",
        absl::StrCat("ranks that were started before this worker hold ", counted(held, "device"), " and --devices is ",
                     resources_.devices, ": no more ranks are accepted until they have ended"));
  }
  session_ = std::make_unique<Session>(
      loop_, Controllers(options_.controllers), options_.credentials, options_.security,
      Session::Callbacks{[this] {
                           read_beacons();
                           return core_.make_register(now());
                         },
                         [this](int64_t session, const std::string& controller, const v1::ControllerMessage& message) {
                           feed(node::Command{session, message, controller});
                         },
                         [this](int64_t session, const std::string& why, const std::string& reason) {
                           on_lost(session, why, reason);
                         }});
  on_timer();
  telemetry_.service.ready();
  notify_service();
  loop_.run();
  session_.reset();
}

void Daemon::watch_signals() {
  const sigset_t set = host::daemon_signals();
  signals_ = host::Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.watch(signals_.get(), [this] {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      const auto received = static_cast<int>(info.ssi_signo);
      if (!host::ends_daemon(received)) {
        telemetry_.journal.write(journal::Level::kInfo, "SignalIgnored", host::ignored_signal_message(received));
        continue;
      }
      telemetry_.service.stopping();
      feed(node::Shutdown{.immediate = received == SIGINT});
    }
  });
}

void Daemon::adopt_all() {
  std::vector<AttemptRecord> records = state_->load_all();
  const auto is_lost = [](const AttemptRecord& record) { return record.error_reason == kRecordLost; };
  std::stable_partition(records.begin(), records.end(), [&](const auto& record) { return !is_lost(record); });
  for (AttemptRecord& record : records) {
    if (record.phase == AttemptRecord::Phase::kForgotten) continue;
    // The devices of its ranks are unknown: assume all that no other attempt has.
    const std::set<int> free = core_.free_devices();
    if (is_lost(record)) record.devices.assign(free.begin(), free.end());
    feed(look_at(record, run_folder(record.key)));
  }
}

void Daemon::feed(const node::Input& input) {
  const bool connected = core_.state().connected;
  for (node::Effect& effect : core_.step(input, now())) perform(std::move(effect));
  if (!connected && core_.state().connected) contact_.found();
  if (timer_) loop_.cancel(*timer_);
  const absl::Duration wait = core_.next_deadline() - now().monotonic;
  timer_ = loop_.after(std::max(absl::ZeroDuration(), wait), [this] { on_timer(); });
}

void Daemon::on_timer() {
  timer_.reset();
  const bool beat = now().monotonic >= core_.state().beat_at;
  if (beat) read_beacons();
  if (beat) check_state_folder();
  feed(node::Tick{});
  if (beat) update_metrics();
}

void Daemon::notify_service() {
  const absl::Duration pace = telemetry_.service.pace();
  if (pace == absl::InfiniteDuration()) return;
  const node::NodeState& state = core_.state();
  telemetry_.service.alive();
  telemetry_.service.status(absl::StrCat(state.connected ? "connected to " + state.controller : "without a controller",
                                         ", ", counted(core_.running_ranks(), "rank"), " of ",
                                         counted(state.attempts.size(), "attempt")));
  loop_.after(pace, [this] { notify_service(); });
}

void Daemon::on_lost(int64_t session, const std::string& why, const std::string& reason) {
  feed(node::Disconnected{session, reason});
  if (core_.state().shutdowns > 0) return;
  if (const auto line = contact_.failed(why, now().monotonic))
    telemetry_.journal.write(journal::Level::kWarning, "NoSession", *line);
}

void Daemon::read_beacons() {
  node::BeaconsRead seen;
  for (const auto& [key, attempt] : core_.state().attempts) {
    if (attempt.over() || !attempt.started) continue;
    Beacons& beacons = beacons_[key];
    for (const node::RankState& rank : attempt.ranks) {
      std::unique_ptr<rank_protocol::BeaconReader>& beacon = beacons[rank.rank];
      if (beacon == nullptr) {
        auto opened = rank_protocol::BeaconReader::open(rank_protocol::beacon_path(rank_folder(key), rank.rank));
        if (!opened.ok()) continue;
        beacon = *std::move(opened);
      } else if (!beacon->look().ok()) {
        beacon = nullptr;  // Nothing is known about this rank until it has a beacon again.
        continue;
      }
      const rank_protocol::BeaconPage& page = beacon->page();
      node::BeaconsRead::Item& item = seen.items.emplace_back();
      item.key = key;
      item.phase_since = absl::Nanoseconds(page.phase_since.load());
      item.status.set_rank(rank.rank);
      item.status.set_step(page.step.load());
      item.status.set_phase(rank_protocol::name(static_cast<rank_protocol::Phase>(page.phase.load())));
      item.status.set_counter(progress_of(page));
      item.status.set_sequence(page.collective_seq.load());
      item.status.set_own_steps(page.own_steps.load());
      item.status.set_own_nanoseconds(page.own_nanos.load());
    }
  }
  std::erase_if(beacons_, [this](const auto& item) {
    const auto found = core_.state().attempts.find(item.first);
    return found == core_.state().attempts.end() || found->second.over();
  });
  if (!seen.items.empty()) feed(seen);
}

void Daemon::update_metrics() {
  if (const auto said = certificate_.due(absl::Now()))
    telemetry_.journal.write(journal::Level::kWarning, "CertificateEnds", *said);
  const node::NodeState& state = core_.state();
  const auto live = std::count_if(state.attempts.begin(), state.attempts.end(),
                                  [](const auto& item) { return !item.second.ending(); });
  WorkerMetrics& metrics = telemetry_.metrics;
  metrics.connected.Set(state.connected ? 1 : 0);
  metrics.ranks.Set(core_.running_ranks());
  metrics.attempts.Set(static_cast<double>(live));
  metrics.devices.Set(resources_.devices);
  metrics.devices_used.Set(core_.devices_held());
  metrics.controller_age.Set(absl::ToDoubleSeconds(now().monotonic - state.heard_at));
  metrics.set_log_bytes_dropped(core_.log_bytes_dropped());
  metrics.set_memory_kills(core_.memory_kills());
  metrics.set_beats(state.beats);
  metrics.set_events(state.events);
  metrics.set_sessions(state.sessions);
  metrics.set_shims_lost(state.shims_lost);
  std::map<std::pair<std::string, int>, int> kills;
  std::set<std::string> dumps;
  for (const auto& [key, attempt] : state.attempts) {
    const std::string& job = attempt.facts.job.empty() ? key.job_uid : attempt.facts.job;
    if (const int ranks = attempt.memory_kills(); ranks > 0) kills[{job, key.number}] = ranks;
    if (!attempt.ending()) dumps.insert(attempt.record.dump_folder);
  }
  metrics.set_memory_kills_of(std::move(kills));
  read_gpus();
  if (now().monotonic < look_at_folders_at_ && dumps == dumps_) return;
  look_at_folders_at_ = now().monotonic + kLookAtFolders;
  dumps_ = std::move(dumps);
  folders_.look(options_.state, dumps_);
}

// Looks at the disk on another thread: a hanging disk must not keep the node from reporting it.
void Daemon::check_state_folder() {
  const absl::Duration time = now().monotonic;
  if (state_look_began_) {
    if (time - *state_look_began_ > kStateTimeout)
      take_state_look(absl::StrCat("the disk of the state folder ", options_.state, " does not answer"));
    return;
  }
  if (time < look_at_state_at_) return;
  look_at_state_at_ = time + kLookAtState;
  state_look_began_ = time;
  const int64_t least = core_.state().unusable.empty() ? kMinSpace : kEnoughSpace;
  state_looks_.run([state = state_, least, programs = programs(), post = loop_.poster(), this] {
    post([this, why = why_unusable(*state, least, programs)] {
      state_look_began_.reset();
      take_state_look(why);
    });
  });
}

void Daemon::take_state_look(const std::string& unusable) {
  telemetry_.metrics.state_folder_usable.Set(unusable.empty() ? 1 : 0);
  feed(node::StateFolderChecked{unusable});
}

void Daemon::read_gpus() {
  if (!gpus_) return;
  for (const journal::Line& line : telemetry_.metrics.gpus()->news()) telemetry_.journal.write(line);
  if (now().monotonic < look_at_gpus_at_) return;
  look_at_gpus_at_ = now().monotonic + kLookAtGpus;
  gpus_->look();
}

}  // namespace titan::daemon
