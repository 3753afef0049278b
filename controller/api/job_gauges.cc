#include "controller/api/job_gauges.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "controller/job/ettr.h"

namespace titan::api {

using job::JobState;
using metrics::add_gauge;
using metrics::gauge_family;

namespace {

// Not `job`: Prometheus gives that name to what it scrapes.
metrics::Labels labels_of(const core::JobView& view) { return {{"titan_job", view.record->name}}; }

// Since when it waits for nodes; nothing when it has them, and waits for what its attempt is about.
std::optional<int64_t> waits_since(const core::JobView& view) {
  if (view.attempts.empty()) return view.record->create_time_ns;
  const int64_t ended = view.attempts.back()->end_time_ns;
  return ended == 0 ? std::nullopt : std::optional(ended);
}

}  // namespace

JobGauges::JobGauges(size_t most, absl::Time now)
    : most_(most),
      now_(now),
      step_(gauge_family("titan_job_step", "Last finished step of a job that is not over.")),
      loss_(gauge_family("titan_job_loss", "Loss at its last logged step.")),
      tokens_(gauge_family("titan_job_tokens_per_second", "Tokens per second and device.")),
      mfu_(gauge_family("titan_job_mfu_ratio", "Model FLOPs utilisation.")),
      experts_(gauge_family("titan_job_expert_max_over_mean_ratio",
                            "Tokens of the most popular expert over the mean, in the least balanced layer.")),
      ettr_(gauge_family("titan_job_ettr_ratio", "Share of the time since the first attempt that was not lost.")),
      ranks_(gauge_family("titan_job_ranks", "Ranks that the job asks for.")),
      attempts_(gauge_family("titan_job_attempts", "Attempts that the job has made.")),
      in_vain_(gauge_family("titan_job_restarts_without_progress", "Restarts since the last new step or checkpoint.")),
      step_age_(gauge_family("titan_job_step_age_seconds",
                             "Since its last logged step, or since its present attempt began if that was later.")),
      committed_(gauge_family("titan_job_committed_step", "Step of its newest complete checkpoint.")),
      checkpoint_age_(
          gauge_family("titan_job_checkpoint_age_seconds",
                       "Since its newest complete checkpoint, or since its first step when there is none.")),
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
  if (view.attempts.empty()) return;  // It has no figures yet.
  if (shown_ == most_) {
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

// What a loss of the job's ranks would cost.
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
      gauge_family("titan_queue_longest_wait_seconds", "How long the job waits for nodes that waits the longest.");
  add_gauge(longest, longest_wait_);
  std::vector<prometheus::MetricFamily> families = {std::move(jobs), std::move(pending), std::move(longest)};
  for (auto* family : {&step_, &loss_, &tokens_, &mfu_, &experts_, &ettr_, &ranks_, &attempts_, &in_vain_, &step_age_,
                       &committed_, &checkpoint_age_, &save_failed_}) {
    families.push_back(std::move(*family));
  }
  return families;
}

}  // namespace titan::api
