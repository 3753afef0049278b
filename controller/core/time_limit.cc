// Time limits of jobs. A job's time begins with its first placement, and all its attempts share it. Records have wall
// time, so that a restarted controller continues to count. A running one counts by its monotonic clock, which nobody
// sets.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobEvent;

constexpr char kTimeLimit[] = "TIME_LIMIT";

// Returns the time in which the job may still save.
absl::Duration grace(const LiveJob& job) { return absl::Seconds(job.record.spec.restart.stop_grace_seconds); }

absl::Duration limit(const LiveJob& job) { return absl::Seconds(job.record.spec.time_limit_seconds); }

// Works like a cancel that saves first, but without a request: a full disk does not refuse it.
void end_by_time_limit(Step& step, LiveJob& job) {
  job.record.intent = {true, true, kTimeLimit, "", step.now.wall_ns(), /*deadline_ns=*/0, {}};
  const bool waits = !job.attempt;
  Change change;
  add_event(step, change, job,
            {.reason = "TimeLimitReached",
             .message = absl::StrCat(absl::FormatDuration(limit(job)), " after its first placement: it ",
                                     waits ? "ends" : "saves and ends"),
             .severity = "warning"});
  if (waits) explain_time_limit(job);  // A running attempt may save once more: its end explains.
  carry_out_stop(step, job, JobEvent::kGaveUp, std::move(change));
  if (waits) request_schedule(step, /*urgent=*/true);
}

}  // namespace

// The scheduler only compares times with each other.
absl::Time scheduler_time(absl::Duration monotonic) { return absl::UnixEpoch() + monotonic; }

void note_time_limit(const Now& now, LiveJob& job) {
  if (job.record.spec.time_limit_seconds <= 0 || job.record.placed_time_ns == 0 || job.ends_by) return;
  const absl::Duration passed = absl::Nanoseconds(now.wall_ns() - job.record.placed_time_ns);
  // The wall clock may have been set.
  job.ends_by = now.monotonic + std::clamp(limit(job) - passed, absl::ZeroDuration(), limit(job));
}

// Counts from now or, if the job was never placed, from its placement.
absl::Duration time_left(const Now& now, const LiveJob& job) {
  if (job.record.spec.time_limit_seconds <= 0) return absl::InfiniteDuration();
  const absl::Duration left = job.ends_by ? *job.ends_by - now.monotonic : limit(job);
  return std::max(left, absl::ZeroDuration()) + grace(job);
}

absl::Time expected_end(const LiveJob& job) {
  if (job.ends_by) return scheduler_time(*job.ends_by + grace(job));
  return job.attempt && job.attempt->ends_about ? scheduler_time(*job.attempt->ends_about) : absl::InfiniteFuture();
}

void check_time_limits(Step& step) {
  std::vector<std::string> over;  // A job without an attempt leaves the map.
  for (const auto& [uid, job] : step.state.jobs.live()) {
    if (step.state.left.is_leaving(uid)) continue;  // Its end is decided already.
    if (job.ends_by && step.now.monotonic >= *job.ends_by && !job.stops()) over.push_back(uid);
  }
  for (const std::string& uid : over) end_by_time_limit(step, step.state.jobs.at(uid));
}

bool is_out_of_time(const LiveJob& job) { return job.stops() && job.record.intent.cause == kTimeLimit; }

void explain_time_limit(LiveJob& job) {
  job.record.failure_reason = kTimeLimit;
  job.record.failure_message = absl::StrCat(
      "its limit of ", absl::FormatDuration(limit(job)), " (scheduling.time_limit_seconds) was over at step ",
      job.record.history.best_step,
      job.progress.committed_step > 0 ? absl::StrCat("; its newest checkpoint is of step ", job.progress.committed_step)
                                      : "; it has no checkpoint");
}

}  // namespace titan::core
