#pragma once

// Computes the gauges of jobs and nodes when Prometheus asks for them.

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

// Jobs as one page of metrics shows them: how many by state and reason, and figures of each that is not over.
class JobGauges {
 public:
  JobGauges(size_t most, absl::Time now);

  void add(const core::JobView& view);
  // Of what was added; once. Families may be empty.
  std::vector<prometheus::MetricFamily> take();
  size_t left_out() const { return left_out_; }  // Jobs that would have series of their own.

 private:
  void add_training(const core::JobView& view);
  void add_safety(const core::JobView& view);
  double since(int64_t time_ns) const;  // Seconds; 0 for a time that is to come.

  const size_t most_;
  const absl::Time now_;
  size_t shown_ = 0, left_out_ = 0;
  std::map<std::string, int> by_state_, by_reason_;
  double longest_wait_ = 0;
  prometheus::MetricFamily step_, loss_, tokens_, mfu_, experts_, ettr_, ranks_, attempts_;
  prometheus::MetricFamily in_vain_, step_age_, committed_, checkpoint_age_, save_failed_;
};

// Nodes as one page of metrics shows them: how many by state, their devices, when each was heard of, slow ranks.
class NodeGauges {
 public:
  NodeGauges(size_t most_nodes, size_t most_slow_ranks, absl::Time now);

  void add(const core::NodeView& view, absl::Time last_beat);
  // Of what was added; once. Families may be empty.
  std::vector<prometheus::MetricFamily> take();
  size_t left_out() const { return beats_.size() > most_nodes_ ? beats_.size() - most_nodes_ : 0; }
  size_t slow_ranks_left_out() const { return slow_ranks_left_out_; }

 private:
  void add_devices(const core::NodeView& view);
  void add_slow_ranks(const core::NodeView& view);
  prometheus::MetricFamily ages();

  const size_t most_nodes_, most_slow_ranks_;
  const absl::Time now_;
  size_t slow_ranks_left_out_ = 0;
  int sessions_ = 0;
  std::map<std::string, int> by_state_, by_mark_;
  std::map<std::pair<std::string, std::string>, int> devices_;  // By kind and use.
  std::vector<std::pair<std::string, double>> beats_;           // Seconds since, by node.
  prometheus::MetricFamily unknown_, score_;
};

}  // namespace titan::api
