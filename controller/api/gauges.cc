#include "controller/api/gauges.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/service/metrics/metrics.h"
#include "controller/job/ettr.h"

namespace titan::api {

using core::NodeState;
using job::JobState;
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
  auto family = gauge_family("titan_series_left_out", "Jobs, nodes and slow ranks beyond the limits of this page.");
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

namespace {

// Prometheus uses the label `job` for its scrape target, so this one is titan_job.
metrics::Labels labels_of(const core::JobView& view) { return {{"titan_job", view.record->name}}; }

// Returns the time since which the job waits for nodes; nothing when it has them and its attempt waits for something
// else.
std::optional<int64_t> waits_since(const core::JobView& view) {
  if (view.attempts.empty()) return view.record->create_time_ns;
  const int64_t ended = view.attempts.back()->end_time_ns;
  return ended == 0 ? std::nullopt : std::optional(ended);
}

}  // namespace

JobGauges::JobGauges(size_t max_jobs, absl::Time now)
    : max_jobs_(max_jobs),
      now_(now),
      step_(gauge_family("titan_job_step", "Last finished step of a job that is not over.")),
      loss_(gauge_family("titan_job_loss", "Loss at its last logged step.")),
      tokens_(gauge_family("titan_job_tokens_per_second", "Tokens per second per device.")),
      mfu_(gauge_family("titan_job_mfu_ratio", "Model FLOPs utilisation.")),
      experts_(gauge_family("titan_job_expert_max_over_mean_ratio",
                            "Tokens of the most popular expert over the mean, in the least balanced layer.")),
      ettr_(gauge_family("titan_job_ettr_ratio", "Share of the time since the first attempt that was not lost.")),
      ranks_(gauge_family("titan_job_ranks", "Ranks that the job requests.")),
      attempts_(gauge_family("titan_job_attempts", "Attempts that the job has made.")),
      in_vain_(gauge_family("titan_job_restarts_without_progress", "Restarts since the last new step or checkpoint.")),
      step_age_(
          gauge_family("titan_job_step_age_seconds",
                       "Seconds since its last logged step, or since its present attempt began if that was later.")),
      committed_(gauge_family("titan_job_committed_step", "Step of its newest complete checkpoint.")),
      checkpoint_age_(
          gauge_family("titan_job_checkpoint_age_seconds",
                       "Seconds since its newest complete checkpoint, or since its first step when there is none.")),
      save_failed_(gauge_family("titan_job_save_failed", "1 when its newest save was given up.")) {
  for (int i = 0; i <= static_cast<int>(JobState::kCancelled); ++i) {
    by_state_[std::string(job::name(static_cast<JobState>(i)))] = 0;
  }
}

double JobGauges::since(int64_t time_ns) const {
  return std::max(0.0, absl::ToDoubleSeconds(now_ - absl::FromUnixNanos(time_ns)));
}

void JobGauges::add(const core::JobView& view) {
  ++by_state_[std::string(job::name(view.record->state))];
  if (job::is_final(view.record->state)) return;
  if (!view.pending_reason.empty()) {
    ++by_reason_[view.pending_reason];
    if (const auto begun = waits_since(view)) longest_wait_ = std::max(longest_wait_, since(*begun));
  }
  if (view.attempts.empty()) return;  // The job has no figures yet.
  if (shown_ == max_jobs_) {
    ++left_out_;
    return;
  }
  ++shown_;
  add_training(view);
  add_safety(view);
}

void JobGauges::add_training(const core::JobView& view) {
  const metrics::Labels labels = labels_of(view);
  add_gauge(ranks_, view.record->spec.ranks, labels);
  add_gauge(attempts_, view.record->attempts, labels);
  add_gauge(in_vain_, view.record->history.without_progress, labels);
  add_gauge(ettr_, job::ettr(*view.record, view.attempts, absl::ToUnixNanos(now_)), labels);
  add_gauge(step_age_, since(std::max(view.progress.update_time_ns, view.attempts.back()->start_time_ns)), labels);
  if (view.progress.step == 0) return;
  add_gauge(step_, static_cast<double>(view.progress.step), labels);
  add_gauge(loss_, view.progress.loss, labels);
  add_gauge(tokens_, view.progress.tokens_per_second, labels);
  if (view.progress.mfu_percent > 0) add_gauge(mfu_, view.progress.mfu_percent / 100, labels);
  if (view.progress.expert_max_over_mean > 0) add_gauge(experts_, view.progress.expert_max_over_mean, labels);
}

// Adds what a loss of the job's ranks would cost.
void JobGauges::add_safety(const core::JobView& view) {
  if (!view.record->spec.saves || view.record->start_time_ns == 0) return;
  const metrics::Labels labels = labels_of(view);
  add_gauge(committed_, static_cast<double>(view.progress.committed_step), labels);
  add_gauge(checkpoint_age_, since(std::max(view.progress.commit_time_ns, view.record->start_time_ns)), labels);
  add_gauge(save_failed_, view.progress.failed_save.empty() ? 0 : 1, labels);
}

std::vector<prometheus::MetricFamily> JobGauges::take() {
  auto jobs = gauge_family("titan_jobs", "Jobs by state.");
  for (const auto& [state, count] : by_state_) add_gauge(jobs, count, {{"state", state}});
  auto pending = gauge_family("titan_pending_jobs", "Jobs that wait, by reason.");
  for (const auto& [reason, count] : by_reason_) add_gauge(pending, count, {{"reason", reason}});
  auto longest =
      gauge_family("titan_queue_longest_wait_seconds", "Longest time that a job has been waiting for nodes.");
  add_gauge(longest, longest_wait_);
  std::vector<prometheus::MetricFamily> families = {std::move(jobs), std::move(pending), std::move(longest)};
  for (auto* family : {&step_, &loss_, &tokens_, &mfu_, &experts_, &ettr_, &ranks_, &attempts_, &in_vain_, &step_age_,
                       &committed_, &checkpoint_age_, &save_failed_}) {
    families.push_back(std::move(*family));
  }
  return families;
}

namespace {

constexpr double kLateSeconds = 3;  // Three missed beats.

}  // namespace

NodeGauges::NodeGauges(size_t max_nodes, size_t max_slow_ranks, absl::Time now)
    : max_nodes_(max_nodes),
      max_slow_ranks_(max_slow_ranks),
      now_(now),
      by_mark_({{"cordoned", 0}, {"draining", 0}, {"flapping", 0}, {"slow", 0}}),
      unknown_(gauge_family("titan_node_unknown_attempts", "Attempts on a node that belong to unknown jobs.")),
      score_(gauge_family("titan_rank_straggler_score",
                          "Score of a slow rank: its peers' own time per step over its own.")) {
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
  if (!view.unknown.empty() && unknown_.metric.size() < max_nodes_) {
    add_gauge(unknown_, static_cast<double>(view.unknown.size()), {{"node", record.name}});
  }
  if (last_beat == absl::Time()) return;  // The node has not been heard from since this controller started.
  beats_.emplace_back(record.name, std::max(0.0, absl::ToDoubleSeconds(now_ - last_beat)));
}

void NodeGauges::add_devices(const core::NodeView& view) {
  const job::NodeRecord& record = view.node.record;
  if (record.devices == 0 && view.devices_used == 0) return;
  const bool usable = view.node.can_take_ranks() && !record.cordoned;
  // Exceeds the node's devices when its worker restarted with fewer while ranks run.
  const int used = view.devices_used, rest = std::max(0, record.devices - used);
  devices_[{record.device, "used"}] += used;
  devices_[{record.device, "free"}] += usable ? rest : 0;
  devices_[{record.device, "away"}] += usable ? 0 : rest;
}

void NodeGauges::add_slow_ranks(const core::NodeView& view) {
  for (const core::SlowRank& slow : view.slow) {
    if (score_.metric.size() == max_slow_ranks_) {
      ++slow_ranks_left_out_;
      continue;
    }
    add_gauge(score_, slow.figures.score,
              {{"titan_job", slow.job}, {"rank", absl::StrCat(slow.rank)}, {"node", slow.node}});
  }
}

// When not all nodes fit, the late ones come first, longest silence first, then the others by name, so that the choice
// is stable.
prometheus::MetricFamily NodeGauges::ages() {
  auto family = gauge_family("titan_node_heartbeat_age_seconds", "Seconds since a node's last beat.");
  if (beats_.size() > max_nodes_) {
    const auto lateness = [](const auto& beat) { return beat.second > kLateSeconds ? beat.second : 0; };
    std::stable_sort(beats_.begin(), beats_.end(),
                     [&](const auto& a, const auto& b) { return lateness(a) > lateness(b); });
  }
  for (const auto& [node, age] : beats_) {
    if (family.metric.size() == max_nodes_) break;
    add_gauge(family, age, {{"node", node}});
  }
  return family;
}

std::vector<prometheus::MetricFamily> NodeGauges::take() {
  auto nodes = gauge_family("titan_nodes", "Nodes by state.");
  for (const auto& [state, count] : by_state_) add_gauge(nodes, count, {{"state", state}});
  auto marked = gauge_family("titan_nodes_marked", "Nodes that are cordoned, draining, flapping or slow.");
  for (const auto& [mark, count] : by_mark_) add_gauge(marked, count, {{"mark", mark}});
  auto sessions = gauge_family("titan_node_sessions", "Workers with an open session.");
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
