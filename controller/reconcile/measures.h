#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"

namespace titan::reconcile {

// The controller's counters and histograms (gauges are computed on demand, see gauges.h).
class Measures {
 public:
  explicit Measures(metrics::Metrics& metrics) : metrics_(metrics) {}

  void attempt_ended(const std::string& cause);
  void lost(const std::string& phase, double seconds);  // A phase of a recovery.
  void recovered(double seconds);                       // From failure to the first step never reached before.
  void checkpoint(double seconds);
  void checkpoint_failed();
  void scheduler_cycle(absl::Duration took);
  void queue_wait(absl::Duration waited);
  void store_commit(absl::Duration took);
  void store_failed();
  void record_damaged();
  void refused(const std::string& reason);  // A worker that was not let in.
  metrics::Metrics& metrics() { return metrics_; }

 private:
  metrics::Metrics& metrics_;
};

}  // namespace titan::reconcile
