// How far an attempt has come: durations of its phases, its first step, and its steps and checkpoints.

#include "absl/strings/str_cat.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobEvent;

}  // namespace

void note_phase(Step& step, LiveJob& job, const std::string& phase, std::optional<absl::Duration> since) {
  if (!since || !job.attempt) return;
  const double seconds = absl::ToDoubleSeconds(step.now.monotonic - *since);
  job.attempt->record.phase_seconds[phase] = seconds;
  if (job.attempt->record.number > 1) step.measure(MetricSample::kLost, seconds, phase);
}

void note_first_step(Step& step, LiveJob& job, Change& change) {
  if (!apply(job, JobEvent::kFirstStep)) return;
  end_explanation(job);
  LiveAttempt& attempt = *job.attempt;
  attempt.record.first_step_time_ns = step.now.wall_ns();
  if (job.record.start_time_ns == 0) job.record.start_time_ns = attempt.record.first_step_time_ns;
  add_event(step, change, job,
            {.attempt = attempt.record.number,
             .reason = "AttemptRunning",
             .message = absl::StrCat("training from step ", attempt.record.resumed_step)});
  put_attempt(change, job, attempt.record);
  put_job(change, job);
}

void take_progress(Step& step, LiveJob& job, int64_t train_step, int64_t commit, Change& change) {
  LiveAttempt& attempt = *job.attempt;
  if (train_step > attempt.record.last_step) {
    const bool is_first = attempt.record.last_step <= attempt.record.resumed_step;
    attempt.record.last_step = train_step;
    if (attempt.advanced_at) note_advance(step.state.pauses, step.now, attempt, is_first || attempt.in_quiet_phase());
  }
  if (!job::note_progress(job.record.history, train_step, commit) || attempt.recovered) return;
  attempt.recovered = true;
  if (attempt.record.number == 1) return;
  note_phase(step, job, "replay", attempt.loaded_at);
  double total = 0;
  for (const auto& [phase, seconds] : attempt.record.phase_seconds) total += seconds;
  step.measure(MetricSample::kRecovered, total);
  put_attempt(change, job, attempt.record);
  show(change, job);
}

}  // namespace titan::core
