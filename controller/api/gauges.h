#pragma once

// Computes the gauges of jobs and nodes when Prometheus scrapes them.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/service/metrics/metrics.h"
#include "controller/core/view.h"
#include "controller/reconcile/reconciler.h"
#include "controller/store/store.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace titan::api {

// Limits the series of each kind, so that pages stay small for any cluster. titan_series_left_out counts the rest.
struct SeriesLimits {
  size_t jobs = 500;
  size_t nodes = 1000;  // Late nodes come first.
  size_t slow_ranks = 100;
};

// Computes gauges at each scrape, so a series disappears with the job or node that it describes. Only jobs that are not
// over have series per job. Reads published state, without the reconciler's lock.
class Gauges : public prometheus::Collectable {
 public:
  // Both outlive the page that shows these gauges.
  Gauges(reconcile::Reconciler& reconciler, const store::Store& store, SeriesLimits caps = {})
      : reconciler_(reconciler), store_(store), caps_(caps) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  reconcile::Reconciler& reconciler_;
  const store::Store& store_;
  const SeriesLimits caps_;
};

// Collects the jobs' families for one scrape: counts by state and reason, and figures of each job that is not over.
class JobGauges {
 public:
  JobGauges(size_t max_jobs, absl::Time now);

  void add(const core::JobView& view);
  // Returns the families of everything added; call it once. Families may be empty.
  std::vector<prometheus::MetricFamily> take();
  size_t left_out() const { return left_out_; }  // Jobs without series because of the limit.

 private:
  void add_training(const core::JobView& view);
  void add_safety(const core::JobView& view);
  double since(int64_t time_ns) const;  // Seconds; 0 for a future time.

  const size_t max_jobs_;
  const absl::Time now_;
  size_t shown_ = 0, left_out_ = 0;
  std::map<std::string, int> by_state_, by_reason_;
  double longest_wait_ = 0;
  prometheus::MetricFamily step_, loss_, tokens_, mfu_, experts_, ettr_, ranks_, attempts_;
  prometheus::MetricFamily in_vain_, step_age_, committed_, checkpoint_age_, save_failed_;
};

// Collects the nodes' families for one scrape: counts by state, devices, time since the last beat, slow ranks.
class NodeGauges {
 public:
  NodeGauges(size_t max_nodes, size_t max_slow_ranks, absl::Time now);

  void add(const core::NodeView& view, absl::Time last_beat);
  // Returns the families of everything added; call it once. Families may be empty.
  std::vector<prometheus::MetricFamily> take();
  size_t left_out() const { return beats_.size() > max_nodes_ ? beats_.size() - max_nodes_ : 0; }
  size_t slow_ranks_left_out() const { return slow_ranks_left_out_; }

 private:
  void add_devices(const core::NodeView& view);
  void add_slow_ranks(const core::NodeView& view);
  prometheus::MetricFamily ages();

  const size_t max_nodes_, max_slow_ranks_;
  const absl::Time now_;
  size_t slow_ranks_left_out_ = 0;
  int sessions_ = 0;
  std::map<std::string, int> by_state_, by_mark_;
  std::map<std::pair<std::string, std::string>, int> devices_;  // By device kind and use.
  std::vector<std::pair<std::string, double>> beats_;           // Seconds since the last beat, by node.
  prometheus::MetricFamily unknown_, score_;
};

}  // namespace titan::api
