// Estimates when jobs without a time limit end, from their own pace. The scheduler may let a job with a time limit run
// before a larger one because of it. The estimate never ends a job.

#include <algorithm>

#include "controller/core/step.h"

namespace titan::core {
namespace {

constexpr int64_t kFewSteps = 3;  // Fewer steps do not show a pace.
// A change smaller than this, or than a tenth of what is left, is not reported to the scheduler.
constexpr absl::Duration kSameEnd = absl::Seconds(5);

// Returns how long the remaining steps take at the faster of two paces: since training began, saves and validations
// included, and since the newest sample. A slow start must not make a waiting job wait longer than necessary.
std::optional<absl::Duration> steps_left_take(LiveAttempt& attempt, int64_t total, absl::Duration now) {
  const int64_t step = attempt.record.last_step;
  if (!attempt.pace_since) attempt.pace_since = attempt.pace_seen = {now, step};
  if (step - attempt.pace_since->step < kFewSteps) return std::nullopt;
  absl::Duration each = (now - attempt.pace_since->at) / (step - attempt.pace_since->step);
  if (const int64_t newest = step - attempt.pace_seen->step; newest >= kFewSteps) {
    each = std::min(each, (now - attempt.pace_seen->at) / newest);
    attempt.pace_seen = {now, step};
  }
  return each * std::max<int64_t>(0, total - step);
}

void update_expected_end(SchedulingQueue& queue, const Now& now, LiveJob& job, absl::Duration end) {
  LiveAttempt& attempt = *job.attempt;
  const absl::Duration same = std::max(kSameEnd, (end - now.monotonic) / 10);
  if (attempt.ends_about && absl::AbsDuration(end - *attempt.ends_about) < same) return;
  attempt.ends_about = end;
  for (const auto& [node, part] : attempt.parts) {
    if (!part.ended) queue.expect_end(job.record.uid, node, scheduler_time(end));
  }
}

}  // namespace

void estimate_ends(State& state, const Now& now) {
  if (!state.estimate.is_due(now.monotonic)) return;
  for (auto& [uid, job] : state.jobs.live()) {
    const bool trains =
        job.record.state == job::JobState::kRunning || job.record.state == job::JobState::kCheckpointing;
    if (!trains || !job.attempt || job.ends_by || job.record.spec.total_steps <= 0) continue;
    const auto left = steps_left_take(*job.attempt, job.record.spec.total_steps, now.monotonic);
    if (left) update_expected_end(state.queue, now, job, now.monotonic + *left + absl::Seconds(job.save_seconds));
  }
}

}  // namespace titan::core
