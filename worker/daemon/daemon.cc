#include "worker/daemon/daemon.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "worker/shim/process.h"

namespace titan::daemon {
namespace {

using Phase = AttemptRecord::Phase;

constexpr absl::Duration kBeatInterval = absl::Seconds(1);
constexpr int kCleanUpBeats = 600;
constexpr absl::Duration kSameSignal = absl::Milliseconds(300);
constexpr absl::Duration kFlushTime = absl::Milliseconds(200);

}  // namespace

void log_line(const std::string& text) {
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  std::fprintf(stderr, "%s titan-worker: %s\n", time.c_str(), text.c_str());
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::create(Options options, Metrics& metrics) {
  TITAN_ASSIGN_OR_RETURN(Resources resources, find_resources(options.devices));
  if (!resources.memory_unknown.empty())
    log_line(
        absl::StrCat("the devices' memory is not known, and no job is compared with it: ", resources.memory_unknown));
  for (const std::string& binary : {options.rank_binary, options.shim_binary}) {
    if (::access(binary.c_str(), X_OK) != 0) return errno_status(errno, absl::StrCat("the program ", binary));
  }
  TITAN_ASSIGN_OR_RETURN(StateFolder state, StateFolder::open(options.state));
  TITAN_RETURN_IF_ERROR(state.check_records());
  return std::unique_ptr<Daemon>(new Daemon(std::move(options), metrics, std::move(state), std::move(resources)));
}

Daemon::Daemon(Options options, Metrics& metrics, StateFolder state, Resources resources)
    : options_(std::move(options)),
      metrics_(metrics),
      state_(std::move(state)),
      resources_(std::move(resources)),
      watcher_(loop_),
      host_(make_host()),
      adopting_(options_.adopt_cluster),
      heard_at_(shim::monotonic_nanos()) {}

Daemon::~Daemon() = default;

AttemptHost Daemon::make_host() {
  AttemptHost host;
  host.loop = &loop_;
  host.state = &state_;
  host.watcher = &watcher_;
  host.shim_binary = options_.shim_binary;
  host.rank_binary = options_.rank_binary;
  host.ipv6 = options_.address.find(':') != std::string::npos;
  host.log_max_bytes = options_.log_max_bytes;
  host.token_patience_seconds = options_.token_patience_seconds;
  host.send = [this](v1::WorkerMessage message) {
    if (session_ != nullptr) session_->send(std::move(message));
  };
  host.connected = [this] { return connected_; };
  host.log = log_line;
  // A thread each: shared storage that hangs for one job must not hold up another. They only touch files and post to
  // the loop.
  host.aside = [](std::function<void()> work) { std::thread(std::move(work)).detach(); };
  host.on_over = [this](const AttemptKey& key) { loop_.post([this, key] { on_over(key); }); };
  host.count_events = [this](int64_t events) { metrics_.events.Increment(static_cast<double>(events)); };
  return host;
}

void Daemon::run() {
  ::signal(SIGCHLD, SIG_IGN);  // Shims are nobody's children for long; the kernel reaps them.
  ::signal(SIGPIPE, SIG_IGN);
  watch_signals();
  adopt_all();
  clean_up();
  log_line(absl::StrCat("node ", options_.node, ": ", counted(resources_.devices, resources_.device + " device"), ", ",
                        counted(resources_.cpu_cores, "core"), ", ", counted(attempts_.size(), "attempt"),
                        " found, controller ", options_.controller));
  session_ = std::make_unique<Session>(
      loop_, options_.controller,
      Session::Callbacks{[this] { return make_register(); },
                         [this](const v1::Welcome& welcome) { on_welcome(welcome); },
                         [this](const v1::ControllerMessage& message) { on_message(message); },
                         [this](const std::string& why, const std::string& reason) { on_lost(why, reason); }});
  tick();
  loop_.run();
  session_.reset();
}

void Daemon::watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  signals_ = shim::Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.watch(signals_.get(), [this] {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) begin_shutdown();
  });
}

void Daemon::adopt_all() {
  for (AttemptRecord& record : state_.load_all()) {
    if (record.phase == Phase::kForgotten) continue;
    const std::string folder = state_.run_folder(record.key);
    if (record.phase == Phase::kPreparing && !shim_lives(folder).value_or(true)) {
      // Killed before the shim began: as if it had never been asked for.
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
      continue;
    }
    const AttemptKey key = record.key;
    attempts_[key] = std::make_shared<Attempt>(host_, std::move(record));
    attempts_[key]->adopt();
  }
}

v1::Register Daemon::make_register() {
  v1::Register message;
  message.set_node(options_.node);
  message.set_address(options_.address);
  message.set_version(TITAN_VERSION);
  message.set_instance(state_.instance());
  if (!adopting_) message.set_cluster(state_.cluster());
  v1::NodeResources* const resources = message.mutable_resources();
  resources->set_device(resources_.device);
  resources->set_devices(resources_.devices);
  resources->set_cpu_cores(resources_.cpu_cores);
  resources->set_memory_bytes(resources_.memory_bytes);
  resources->set_device_model(resources_.device_model);
  resources->set_device_memory_bytes(resources_.device_memory_bytes);
  for (const auto& [key, attempt] : attempts_) {
    if (attempt->preparing()) continue;
    v1::AttemptInventory* const item = message.add_inventory();
    item->mutable_id()->set_job_uid(key.job_uid);
    item->mutable_id()->set_number(key.number);
    item->set_phase(attempt->phase());
    attempt->describe(item);
    attempt->fill(item->mutable_ranks());
  }
  return message;
}

// A controller with another store knows nothing of what runs here: it must not be able to stop it. An old controller
// lets everybody in, so the worker looks itself.
bool Daemon::may_follow(const v1::Welcome& welcome) {
  const std::string known = state_.cluster();
  if (!known.empty() && known != welcome.cluster() && !adopting_) {
    session_->reset(absl::StrCat("the controller at ", options_.controller, " is of cluster ", welcome.cluster(),
                                 " and this worker of ", known,
                                 ": taking no command from it, ranks go on. If that controller is to be followed, "
                                 "restart titan-worker once with "
                                 "--adopt-cluster"));
    return false;
  }
  if (known != welcome.cluster() && !welcome.cluster().empty()) {
    const absl::Status joined = state_.join(welcome.cluster());
    if (!joined.ok()) {
      session_->reset(absl::StrCat("cannot write down the cluster's id: ", joined.message()));
      return false;
    }
    log_line(absl::StrCat("belongs to cluster ", welcome.cluster(), known.empty() ? "" : ", before to ", known));
  }
  adopting_ = false;
  return true;
}

void Daemon::on_welcome(const v1::Welcome& welcome) {
  if (!may_follow(welcome)) {
    heard_at_ = shim::monotonic_nanos();  // Somebody answers, and a person has to decide: the ranks are no orphans.
    return;
  }
  connected_ = true;
  lease_epoch_ = welcome.lease_epoch();
  lease_milliseconds_ = welcome.lease_milliseconds() > 0 ? welcome.lease_milliseconds() : lease_milliseconds_;
  heard_at_ = shim::monotonic_nanos();
  contact_.found();
  metrics_.sessions.Increment();
  log_line(absl::StrCat("connected to ", options_.controller, ", lease ", lease_milliseconds_, " ms"));
  for (const auto& [key, attempt] : attempts_) attempt->on_session();
}

void Daemon::on_lost(const std::string& why, const std::string& reason) {
  connected_ = false;
  const absl::Duration now = absl::Nanoseconds(shim::monotonic_nanos());
  if (reason == "WRONG_CLUSTER") heard_at_ = absl::ToInt64Nanoseconds(now);  // As in on_welcome().
  if (shutdowns_ > 0) return;
  if (const auto line = contact_.failed(why, now)) log_line(*line);
}

void Daemon::tick() {
  const int64_t now = shim::monotonic_nanos();
  const int64_t silence = (now - heard_at_) / 1'000'000;
  if (connected_ && silence > std::max<int64_t>(lease_milliseconds_, 3000)) {
    session_->reset(absl::StrCat("no answer to beats for ", silence, " ms"));
  }
  v1::WorkerMessage message;
  v1::Beat* const beat = message.mutable_beat();
  beat->set_lease_epoch(lease_epoch_);
  beat->set_sequence(++beat_);
  for (const auto& [key, attempt] : attempts_) {
    attempt->renew_lease(silence);
    attempt->forward_events();
    if (attempt->over() || attempt->preparing()) continue;
    v1::AttemptBeat* const item = beat->add_attempts();
    item->mutable_id()->set_job_uid(key.job_uid);
    item->mutable_id()->set_number(key.number);
    attempt->fill(item->mutable_ranks());
  }
  if (connected_) {
    session_->send(std::move(message));
    metrics_.beats.Increment();
  }
  update_metrics();
  if (beat_ % kCleanUpBeats == 0) clean_up();
  loop_.after(kBeatInterval, [this] { tick(); });
}

void Daemon::clean_up() { state_.remove_old(options_.log_retention, options_.log_retention_bytes); }

void Daemon::update_metrics() {
  int ranks = 0;
  int live = 0;
  int64_t dropped = log_bytes_of_ended_;
  for (const auto& [key, attempt] : attempts_) {
    ranks += attempt->running_ranks();
    live += attempt->over() ? 0 : 1;
    dropped += attempt->log_bytes_dropped();
  }
  metrics_.connected.Set(connected_ ? 1 : 0);
  metrics_.ranks.Set(ranks);
  metrics_.attempts.Set(live);
  metrics_.devices.Set(resources_.devices);
  metrics_.devices_used.Set(resources_.devices - static_cast<int>(free_devices().size()));
  metrics_.set_log_bytes_dropped(dropped);
}

void Daemon::begin_shutdown() {
  // A dying parent with many threads may send its death signal several times in a moment: that is one wish.
  const int64_t now = shim::monotonic_nanos();
  if (shutdowns_ > 0 && now - shutdown_at_ < absl::ToInt64Nanoseconds(kSameSignal)) return;
  shutdown_at_ = now;
  ++shutdowns_;
  if (!options_.stop_ranks_on_exit) return loop_.stop();
  log_line(shutdowns_ == 1 ? "stopping: the ranks save and stop" : "stopping at once");
  const bool save = shutdowns_ == 1;
  for (const auto& [key, attempt] : attempts_) {
    if (!attempt->over())
      attempt->stop(save, save ? absl::ToInt64Milliseconds(options_.stop_grace) : 0, "WORKER_STOPPING");
  }
  end_if_all_stopped();
}

void Daemon::end_if_all_stopped() {
  if (shutdowns_ == 0) return;
  for (const auto& [key, attempt] : attempts_) {
    if (!attempt->over()) return;
  }
  loop_.after(kFlushTime, [this] { loop_.stop(); });  // The last reports leave first.
}

void Daemon::on_over(const AttemptKey& key) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) return;
  const AttemptRecord& record = found->second->record();
  if (record.error_reason == "SHIM_LOST") metrics_.shims_lost.Increment();
  if (forgetting_.erase(key) > 0) forget(key);
  end_if_all_stopped();
}

}  // namespace titan::daemon
