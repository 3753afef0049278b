#include "controller/api/gauges.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/service/metrics/metrics.h"
#include "controller/api/job_gauges.h"
#include "controller/api/node_gauges.h"

namespace titan::api {

using metrics::add_gauge;
using metrics::gauge_family;

namespace {

std::vector<prometheus::MetricFamily> of_store(const store::Store& store) {
  const store::QueueSize queued = store.queued();
  auto transactions = gauge_family("titan_store_queue_transactions", "Transactions that wait to be written.");
  add_gauge(transactions, static_cast<double>(queued.transactions));
  auto bytes = gauge_family("titan_store_queue_bytes", "Bytes of those transactions.");
  add_gauge(bytes, static_cast<double>(queued.bytes));
  auto revision = gauge_family("titan_store_revision", "The last durable transaction's number.");
  add_gauge(revision, static_cast<double>(store.revision()));
  return {std::move(transactions), std::move(bytes), std::move(revision)};
}

prometheus::MetricFamily left_out(size_t jobs, size_t nodes, size_t slow_ranks) {
  auto family =
      gauge_family("titan_series_left_out", "Jobs, nodes and slow ranks beyond what this page shows at most.");
  add_gauge(family, static_cast<double>(jobs), {{"of", "jobs"}});
  add_gauge(family, static_cast<double>(nodes), {{"of", "nodes"}});
  add_gauge(family, static_cast<double>(slow_ranks), {{"of", "slow_ranks"}});
  return family;
}

}  // namespace

std::vector<prometheus::MetricFamily> Gauges::Collect() const {
  JobGauges jobs(caps_.jobs, absl::Now());
  reconciler_.published().each([&](const reconcile::JobView& view) { jobs.add(view); });
  NodeGauges nodes(caps_.nodes, caps_.slow_ranks, absl::Now());
  reconciler_.each_node([&](const core::NodeView& view, absl::Time last_beat) { nodes.add(view, last_beat); });
  std::vector<prometheus::MetricFamily> families = of_store(store_);
  for (prometheus::MetricFamily& family : jobs.take()) families.push_back(std::move(family));
  for (prometheus::MetricFamily& family : nodes.take()) families.push_back(std::move(family));
  families.push_back(left_out(jobs.left_out(), nodes.left_out(), nodes.slow_ranks_left_out()));
  std::erase_if(families, [](const prometheus::MetricFamily& family) { return family.metric.empty(); });
  return families;
}

}  // namespace titan::api
