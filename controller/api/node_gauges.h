#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/service/metrics/metrics.h"
#include "controller/core/view.h"

namespace titan::api {

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
