#include "worker/daemon/metrics.h"

#include "prometheus/counter.h"

namespace titan::daemon {

Metrics::Metrics(const std::string& node)
    : labels_({{"node", node}}),
      log_dropped_(metrics_.counter("titan_worker_log_dropped_bytes_total",
                                    "Rank log bytes dropped by size caps or a full disk.", labels_)),
      connected(metrics_.gauge("titan_worker_connected", "1 while a session with the controller is up.", labels_)),
      ranks(metrics_.gauge("titan_worker_ranks", "Rank processes that run on this node.", labels_)),
      attempts(metrics_.gauge("titan_worker_attempts", "Attempts with a shim on this node.", labels_)),
      devices(metrics_.gauge("titan_worker_devices", "Ranks that fit on this node.", labels_)),
      devices_used(metrics_.gauge("titan_worker_devices_used", "Devices given to live attempts.", labels_)),
      beats(metrics_.counter("titan_worker_beats_total", "Beats sent to the controller.", labels_)),
      events(metrics_.counter("titan_worker_events_forwarded_total",
                              "Rank events sent to the controller, repetitions too.", labels_)),
      sessions(metrics_.counter("titan_worker_sessions_total", "Sessions opened with the controller.", labels_)),
      shims_lost(metrics_.counter("titan_worker_shims_lost_total", "Shims that ended unexpectedly.", labels_)) {}

void Metrics::set_log_bytes_dropped(int64_t bytes) {
  const double more = static_cast<double>(bytes) - log_dropped_.Value();
  if (more > 0) log_dropped_.Increment(more);
}

}  // namespace titan::daemon
