#include "controller/api/gauges.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/metrics/metrics.h"
#include "controller/job/ettr.h"

namespace titan::api {

using metrics::add_gauge;
using metrics::gauge_family;

namespace {

constexpr size_t kMostSlowRanks = 100;  // Series.

}  // namespace

std::vector<prometheus::MetricFamily> Gauges::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  collect_jobs(families);
  collect_nodes(families);
  return families;
}

void Gauges::collect_jobs(std::vector<prometheus::MetricFamily>& families) const {
  auto step = gauge_family("titan_job_step", "Last finished step of a job that is not over.");
  auto loss = gauge_family("titan_job_loss", "Loss at that step.");
  auto tokens = gauge_family("titan_job_tokens_per_second", "Tokens per second and device.");
  auto mfu = gauge_family("titan_job_mfu_ratio", "Model FLOPs utilisation.");
  auto experts = gauge_family("titan_job_expert_max_over_mean_ratio",
                              "Tokens of the most popular expert over the mean, in the least balanced layer.");
  auto ettr = gauge_family("titan_job_ettr_ratio", "Share of the time since the first attempt that was not lost.");
  std::map<std::string, int> by_state, by_reason;
  for (int i = 0; i <= static_cast<int>(job::JobState::kCancelled); ++i) {
    by_state[std::string(job::name(static_cast<job::JobState>(i)))] = 0;
  }
  size_t shown = 0;
  reconciler_.published().each([&](const reconcile::JobView& view) {
    ++by_state[std::string(job::name(view.record->state))];
    if (job::is_final(view.record->state)) return;
    if (!view.pending_reason.empty()) ++by_reason[view.pending_reason];
    if (view.progress.step == 0 || ++shown > max_jobs_) return;
    const metrics::Labels labels = {{"job", view.record->name}};
    add_gauge(step, static_cast<double>(view.progress.step), labels);
    add_gauge(loss, view.progress.loss, labels);
    add_gauge(tokens, view.progress.tokens_per_second, labels);
    if (view.progress.mfu_percent > 0) add_gauge(mfu, view.progress.mfu_percent / 100, labels);
    if (view.progress.expert_max_over_mean > 0) add_gauge(experts, view.progress.expert_max_over_mean, labels);
    add_gauge(ettr, job::ettr(*view.record, view.attempts, absl::ToUnixNanos(absl::Now())), labels);
  });
  auto jobs = gauge_family("titan_jobs", "Jobs by state.");
  for (const auto& [state, count] : by_state) add_gauge(jobs, count, {{"state", state}});
  auto pending = gauge_family("titan_pending_jobs", "Jobs that wait, by reason.");
  for (const auto& [reason, count] : by_reason) add_gauge(pending, count, {{"reason", reason}});
  for (auto* family : {&jobs, &pending, &step, &loss, &tokens, &mfu, &experts, &ettr}) {
    if (!family->metric.empty()) families.push_back(std::move(*family));
  }
}

void Gauges::collect_nodes(std::vector<prometheus::MetricFamily>& families) const {
  auto nodes = gauge_family("titan_nodes", "Nodes by state.");
  auto age = gauge_family("titan_node_heartbeat_age_seconds", "Since a node was last heard of.");
  std::map<std::string, int> by_state = {
      {"READY", 0}, {"LOST", 0}, {"UNREACHABLE", 0}, {"RECONCILING", 0}, {"REFUSED", 0}};
  auto unknown = gauge_family("titan_node_unknown_attempts", "Attempts on a node of jobs that this controller lacks.");
  auto score =
      gauge_family("titan_rank_straggler_score", "Of a rank that is slow: its peers' own time a step over its own.");
  for (const reconcile::NodeView& view : reconciler_.nodes()) {
    for (const core::SlowRank& slow : view.slow) {
      if (score.metric.size() >= kMostSlowRanks) break;
      add_gauge(score, slow.figures.score, {{"job", slow.job}, {"rank", absl::StrCat(slow.rank)}, {"node", slow.node}});
    }
    if (!view.unknown.empty()) {
      add_gauge(unknown, static_cast<double>(view.unknown.size()), {{"node", view.node.record.name}});
    }
    ++by_state[std::string(cluster::name(view.node.state))];
    if (view.node.last_beat_time == absl::Time()) continue;  // Not heard of since this controller started.
    add_gauge(age, absl::ToDoubleSeconds(absl::Now() - view.node.last_beat_time), {{"node", view.node.record.name}});
  }
  for (const auto& [state, count] : by_state) add_gauge(nodes, count, {{"state", state}});
  families.push_back(std::move(nodes));
  if (!age.metric.empty()) families.push_back(std::move(age));
  if (!score.metric.empty()) families.push_back(std::move(score));
  if (!unknown.metric.empty()) families.push_back(std::move(unknown));
}

}  // namespace titan::api
