#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/service/metrics/metrics.h"

namespace titan::reconcile {

// The controller's counters and histograms. Gauges are computed on demand: see gauges.h. Metrics with a known set of
// labels are on the page from the beginning, so that the first event counts as an increase.
class Measures {
 public:
  explicit Measures(metrics::Metrics& metrics);

  void attempt_ended(const std::string& cause);
  void lost(const std::string& phase, double seconds);  // A phase of a recovery.
  void recovered(double seconds);                       // From failure to the first step never reached before.
  void checkpoint(double seconds);
  void checkpoint_stall(double seconds);  // Training time that saves took between two logged lines.
  void checkpoint_failed();
  void scheduler_cycle(absl::Duration took);
  void queue_wait(absl::Duration waited);
  void store_commit(int transactions, absl::Duration took);
  void store_failed();
  void record_damaged();
  void refused(const std::string& reason);  // A worker was refused.
  void kept_logs(int64_t bytes);            // Present bytes of failed ranks' logs.
  void logs_dropped(const std::string& reason, double bytes);
  void leads(bool leads);  // Whether this controller leads. Another one may.
  metrics::Metrics& metrics() { return metrics_; }

 private:
  prometheus::Counter& dropped_logs(const std::string& reason);
  prometheus::Counter& refusals(const std::string& reason);
  prometheus::Counter& attempts(const std::string& cause);
  prometheus::Counter& lost_seconds(const std::string& phase);
  prometheus::Histogram& recovery(const std::string& phase);
  prometheus::Histogram& checkpoint_duration(const std::string& kind);

  metrics::Metrics& metrics_;
  prometheus::Counter& checkpoint_failures_;
  prometheus::Histogram& scheduler_cycles_;
  prometheus::Histogram& queue_waits_;
  prometheus::Histogram& store_commits_;
  prometheus::Counter& store_transactions_;
  prometheus::Counter& store_failures_;
  prometheus::Counter& damaged_records_;
  prometheus::Gauge& kept_logs_;
  prometheus::Gauge& leader_;
};

}  // namespace titan::reconcile
