#pragma once

#include <vector>

#include "controller/reconcile/reconciler.h"
#include "controller/store/store.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace titan::api {

// The most series of a kind: pages stay small whatever the cluster. titan_series_left_out says how many are not there.
struct Caps {
  size_t jobs = 500;
  size_t nodes = 1000;  // Those that are late come first.
  size_t slow_ranks = 100;
};

// Gauges computed when Prometheus asks: a series exists exactly as long as what it describes. Per-job series only for
// jobs that are not over. Reads what is published, without the reconciler's lock.
class Gauges : public prometheus::Collectable {
 public:
  // Both outlive the page that shows this.
  Gauges(reconcile::Reconciler& reconciler, const store::Store& store, Caps caps = {})
      : reconciler_(reconciler), store_(store), caps_(caps) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  reconcile::Reconciler& reconciler_;
  const store::Store& store_;
  const Caps caps_;
};

}  // namespace titan::api
