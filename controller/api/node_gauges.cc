#include "controller/api/node_gauges.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::api {

using core::NodeState;
using metrics::add_gauge;
using metrics::gauge_family;

namespace {

constexpr double kLateSeconds = 3;  // Three beats missed.

}  // namespace

NodeGauges::NodeGauges(size_t most_nodes, size_t most_slow_ranks, absl::Time now)
    : most_nodes_(most_nodes),
      most_slow_ranks_(most_slow_ranks),
      now_(now),
      by_mark_({{"cordoned", 0}, {"draining", 0}, {"flapping", 0}, {"slow", 0}}),
      unknown_(gauge_family("titan_node_unknown_attempts", "Attempts on a node of jobs that this controller lacks.")),
      score_(gauge_family("titan_rank_straggler_score",
                          "Of a rank that is slow: its peers' own time a step over its own.")) {
  for (int i = 0; i <= static_cast<int>(NodeState::kUnusable); ++i) {
    by_state_[std::string(core::name(static_cast<NodeState>(i)))] = 0;
  }
}

void NodeGauges::add(const core::NodeView& view, absl::Time last_beat) {
  const job::NodeRecord& record = view.node.record;
  ++by_state_[std::string(core::name(view.node.state))];
  by_mark_["cordoned"] += record.cordoned;
  by_mark_["draining"] += record.drain.time_ns != 0;
  by_mark_["flapping"] += view.node.flapping;
  by_mark_["slow"] += view.is_slow;
  sessions_ += view.node.session != 0;
  add_devices(view);
  add_slow_ranks(view);
  if (!view.unknown.empty() && unknown_.metric.size() < most_nodes_) {
    add_gauge(unknown_, static_cast<double>(view.unknown.size()), {{"node", record.name}});
  }
  if (last_beat == absl::Time()) return;  // Not heard of since this controller started.
  beats_.emplace_back(record.name, std::max(0.0, absl::ToDoubleSeconds(now_ - last_beat)));
}

void NodeGauges::add_devices(const core::NodeView& view) {
  const job::NodeRecord& record = view.node.record;
  if (record.devices == 0 && view.devices_used == 0) return;
  const bool usable = view.node.can_take_ranks() && !record.cordoned;
  // More than there are when its worker was restarted with fewer under ranks that run.
  const int used = view.devices_used, rest = std::max(0, record.devices - used);
  devices_[{record.device, "used"}] += used;
  devices_[{record.device, "free"}] += usable ? rest : 0;
  devices_[{record.device, "away"}] += usable ? 0 : rest;
}

void NodeGauges::add_slow_ranks(const core::NodeView& view) {
  for (const core::SlowRank& slow : view.slow) {
    if (score_.metric.size() == most_slow_ranks_) {
      ++slow_ranks_left_out_;
      continue;
    }
    add_gauge(score_, slow.figures.score,
              {{"titan_job", slow.job}, {"rank", absl::StrCat(slow.rank)}, {"node", slow.node}});
  }
}

// When not all can be shown, those that are late, longest first; the others by name, so that they stay the same.
prometheus::MetricFamily NodeGauges::ages() {
  auto family = gauge_family("titan_node_heartbeat_age_seconds", "Since a node was last heard of.");
  if (beats_.size() > most_nodes_) {
    const auto lateness = [](const auto& beat) { return beat.second > kLateSeconds ? beat.second : 0; };
    std::stable_sort(beats_.begin(), beats_.end(),
                     [&](const auto& a, const auto& b) { return lateness(a) > lateness(b); });
  }
  for (const auto& [node, age] : beats_) {
    if (family.metric.size() == most_nodes_) break;
    add_gauge(family, age, {{"node", node}});
  }
  return family;
}

std::vector<prometheus::MetricFamily> NodeGauges::take() {
  auto nodes = gauge_family("titan_nodes", "Nodes by state.");
  for (const auto& [state, count] : by_state_) add_gauge(nodes, count, {{"state", state}});
  auto marked = gauge_family("titan_nodes_marked", "Nodes that are cordoned, draining, flapping or slow.");
  for (const auto& [mark, count] : by_mark_) add_gauge(marked, count, {{"mark", mark}});
  auto sessions = gauge_family("titan_node_sessions", "Workers that speak for their nodes.");
  add_gauge(sessions, sessions_);
  auto devices =
      gauge_family("titan_devices", "Devices of all nodes: used, free, or away with a node that takes no ranks now.");
  for (const auto& [key, count] : devices_) add_gauge(devices, count, {{"device", key.first}, {"state", key.second}});
  std::vector<prometheus::MetricFamily> families = {std::move(nodes), std::move(marked), std::move(sessions),
                                                    std::move(devices), ages()};
  families.push_back(std::move(unknown_));
  families.push_back(std::move(score_));
  return families;
}

}  // namespace titan::api
