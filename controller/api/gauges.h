#pragma once

#include "controller/reconcile/reconciler.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace titan::api {

// Gauges computed when Prometheus asks: a series exists exactly as long as what it describes. Per-job series only for
// jobs that are not over, and at most `max_jobs` of them.
class Gauges : public prometheus::Collectable {
 public:
  explicit Gauges(reconcile::Reconciler& reconciler, size_t max_jobs = 500)
      : reconciler_(reconciler), max_jobs_(max_jobs) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  void collect_jobs(std::vector<prometheus::MetricFamily>& families) const;
  void collect_nodes(std::vector<prometheus::MetricFamily>& families) const;

  reconcile::Reconciler& reconciler_;
  const size_t max_jobs_;
};

}  // namespace titan::api
