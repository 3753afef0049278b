#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"

namespace titan::daemon {

// What /metrics of this worker says.
class Metrics {
 public:
  explicit Metrics(const std::string& node);

  // Serves http://ADDRESS/metrics; returns the port, which the system chooses when 0 is asked for.
  absl::StatusOr<int> serve(const std::string& address) { return metrics_.serve(address); }

  void set_log_bytes_dropped(int64_t bytes);  // Sum over the attempts of this daemon's life; never falls.

 private:
  titan::metrics::Metrics metrics_;
  const titan::metrics::Labels labels_;
  prometheus::Counter& log_dropped_;

 public:
  prometheus::Gauge& connected;
  prometheus::Gauge& ranks;
  prometheus::Gauge& attempts;
  prometheus::Gauge& devices;
  prometheus::Gauge& devices_used;
  prometheus::Counter& beats;
  prometheus::Counter& events;
  prometheus::Counter& sessions;
  prometheus::Counter& shims_lost;
};

}  // namespace titan::daemon
