#include "worker/node/daemon/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

constexpr size_t kMaxAttempts = 100;  // Limit of series.

}  // namespace

WorkerMetrics::WorkerMetrics(const std::string& node)
    : labels_({{"node", node}}),
      kills_(std::make_shared<MemoryKills>(labels_)),
      folders_(std::make_shared<titan::metrics::FolderSpace>(labels_)),
      gpus_(std::make_shared<GpuSeries>(labels_)),
      log_dropped_(metrics_.counter("titan_worker_log_dropped_bytes_total",
                                    "Rank log bytes dropped by size caps or a full disk.", labels_)),
      memory_kills_(metrics_.counter("titan_worker_memory_kills_total", "Ranks that ran out of memory.", labels_)),
      beats_(metrics_.counter("titan_worker_beats_total", "Beats sent to the controller.", labels_)),
      events_(metrics_.counter("titan_worker_events_forwarded_total",
                               "Rank events sent to the controller, including repetitions.", labels_)),
      sessions_(metrics_.counter("titan_worker_sessions_total", "Sessions opened with the controller.", labels_)),
      shims_lost_(metrics_.counter("titan_worker_shims_lost_total", "Shims that ended unexpectedly.", labels_)),
      connected(metrics_.gauge("titan_worker_connected", "1 while a session with the controller is up.", labels_)),
      ranks(metrics_.gauge("titan_worker_ranks", "Rank processes that run on this node.", labels_)),
      attempts(metrics_.gauge("titan_worker_attempts", "Attempts on this node that have not ended.", labels_)),
      state_folder_usable(metrics_.gauge("titan_state_folder_usable",
                                         "1 while the daemon's state folder exists and is writable.", labels_)),
      devices(metrics_.gauge("titan_worker_devices", "Ranks that fit on this node.", labels_)),
      devices_used(metrics_.gauge("titan_worker_devices_used", "Devices given to live attempts.", labels_)),
      controller_age(metrics_.gauge("titan_worker_controller_age_seconds",
                                    "Seconds since the controller was last heard, or since this daemon started.",
                                    labels_)) {
  state_folder_usable.Set(1);
  metrics_.add(kills_);
  metrics_.add(folders_);
  metrics_.add(gpus_);
}

void WorkerMetrics::add_callback_gauge(const std::string& name, const std::string& help,
                                       std::function<std::optional<double>()> ask) {
  metrics_.add(std::make_shared<titan::metrics::CallbackGauge>(name, help, labels_, std::move(ask)));
}

void WorkerMetrics::raise(prometheus::Counter& counter, int64_t total) {
  counter.Increment(std::max(0.0, static_cast<double>(total) - counter.Value()));
}

void WorkerMetrics::MemoryKills::set(std::map<std::pair<std::string, int>, int> kills) {
  const sync::Lock lock(mutex_);
  kills_ = std::move(kills);
}

std::vector<prometheus::MetricFamily> WorkerMetrics::MemoryKills::Collect() const {
  auto family = titan::metrics::gauge_family("titan_worker_attempt_memory_kills",
                                             "Ranks of an attempt that ran out of memory here, until it is forgotten.");
  const sync::Lock lock(mutex_);
  for (const auto& [attempt, ranks] : kills_) {
    if (family.metric.size() == kMaxAttempts) break;
    titan::metrics::Labels labels = labels_;
    labels["titan_job"] = attempt.first;
    labels["attempt"] = absl::StrCat(attempt.second);
    titan::metrics::add_gauge(family, ranks, labels);
  }
  if (family.metric.empty()) return {};
  return {std::move(family)};
}

void FolderWatch::look(const std::string& state, const std::set<std::string>& dumps) {
  look(state_, "state", {state});
  look(dumps_, "dump", dumps);
}

void FolderWatch::look(Look& look, const std::string& kind, const std::set<std::string>& folders) {
  if (look.busy->exchange(true)) return;
  look.lane.run([space = space_, busy = look.busy, kind, folders] {
    space->look(kind, folders);
    *busy = false;
  });
}

}  // namespace titan::daemon
