// Lines of the ranks' spools: each is taken exactly once, in order, and acknowledged when that is durable.

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "controller/core/keys.h"
#include "controller/core/rank_event.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

// The rank that sent the events, and what follows from them.
struct EventSource {
  LiveJob& job;
  const int attempt;
  const int rank;
  const std::string& node;
  Change& change;
  bool is_job_changed = false;  // The job's record must be written.

  bool is_current() const { return job.attempt && job.attempt->record.number == attempt; }
};

void report_event(const Step& step, EventSource& word, const char* reason, std::string message,
                  const char* severity = "info") {
  add_event(step, word.change, word.job,
            {.node = word.node,
             .attempt = word.attempt,
             .rank = word.rank,
             .reason = reason,
             .message = std::move(message),
             .severity = severity});
  word.is_job_changed = true;
}

// For events that ranks may repeat without end.
void report_repeating_event(Step& step, EventSource& word, const char* reason, std::string message,
                            const char* severity = "warning") {
  if (!step.state.spools.should_report({word.job.record.uid, word.attempt}, reason, message)) return;
  report_event(step, word, reason, std::move(message), severity);
}

// A node that reconnects reports the damage again. The lost events may include the commit that somebody waits for.
// Nothing shows whether that checkpoint exists, so the wait ends.
void take_damage(Step& step, EventSource& word, const ReportedSpoolDamage& damage) {
  LiveJob& job = word.job;
  const Spools::Damage noted = step.state.spools.note_damage({job.record.uid, word.attempt, word.rank}, damage.offset);
  if (noted == Spools::Damage::kIgnore) return;
  const bool is_last = noted == Spools::Damage::kReportLast;
  report_event(step, word, "SpoolDamaged",
               absl::StrCat(damage.message, is_last ? "; no more damage of this rank's events is reported" : ""),
               "warning");
  if (word.rank != 0 || !word.is_current() || !apply(job, job::JobEvent::kCheckpointDone)) return;
  end_explanation(job);
  job.progress.failed_save = "its outcome is not known: events of rank 0 were lost";
  put_progress(word.change, job);
}

// Changes the record of an ended attempt by a late event. `apply` returns whether it changed anything.
void change_ended(LiveJob& job, int attempt, Change& change, const std::function<bool(job::AttemptRecord&)>& apply) {
  for (std::shared_ptr<const job::AttemptRecord>& past : job.past) {
    if (past->number != attempt) continue;
    job::AttemptRecord record = *past;
    if (!apply(record)) return;
    put_attempt(change, job, record);
    past = std::make_shared<const job::AttemptRecord>(std::move(record));
    show(change, job);
  }
}

// A line gives the training time that saves took, per step since the previous line. A validation's line has no such
// value.
void note_stall(Step& step, LiveAttempt& attempt, const StepLogged& logged) {
  if (!logged.checkpoint_seconds) return;
  const double each = *logged.checkpoint_seconds;
  const std::optional<int64_t> before = std::exchange(attempt.logged_step, logged.step);
  if (before && logged.step > *before && each > 0)
    step.measure(MetricSample::kCheckpointStall, each * static_cast<double>(logged.step - *before));
}

void take_event(Step& step, EventSource& word, const StepLogged& logged) {
  job::Progress& progress = word.job.progress;
  progress.loss = logged.loss.value_or(progress.loss);
  progress.grad_norm = logged.grad_norm.value_or(progress.grad_norm);
  progress.tokens_per_second = logged.tokens_per_second.value_or(progress.tokens_per_second);
  progress.mfu_percent = logged.mfu_percent.value_or(progress.mfu_percent);
  progress.expert_max_over_mean = logged.expert_max_over_mean.value_or(progress.expert_max_over_mean);
  progress.update_time_ns = step.now.wall_ns();
  if (word.is_current()) {
    note_stall(step, *word.job.attempt, logged);
    note_first_step(step, word.job, word.change);
  }
  take_finished_step(step, word.job, word.attempt, logged.step, word.change);
  put_progress(word.change, word.job);
  show(word.change, word.job);
}

void take_event(Step& step, EventSource& word, const StateLoaded& loaded) {
  if (word.rank != 0) return;
  report_event(step, word, "AttemptLoaded",
               loaded.source == "checkpoint" ? absl::StrCat("checkpoint of step ", loaded.step)
                                             : absl::StrCat("initial weights (", loaded.source, ")"));
  if (!word.is_current()) {
    return change_ended(word.job, word.attempt, word.change, [&loaded](job::AttemptRecord& record) {
      return std::exchange(record.resumed_step, loaded.step) != loaded.step;
    });
  }
  LiveAttempt& attempt = *word.job.attempt;
  if (std::exchange(attempt.loaded, true)) return;
  attempt.record.resumed_step = loaded.step;
  attempt.logged_step = loaded.step;
  note_phase(step, word.job, "load", attempt.started_at);
  attempt.loaded_at = step.now.monotonic;
  put_attempt(word.change, word.job, attempt.record);
}

void take_event(Step& step, EventSource& word, const CheckpointStaged& staged) {
  if (word.rank == 0) report_event(step, word, "CheckpointStaged", absl::StrCat("step ", staged.step));
}

void take_event(Step& step, EventSource& word, const CheckpointCommitted& committed) {
  if (word.rank != 0) return;
  LiveJob& job = word.job;
  report_event(step, word, "CheckpointCommitted",
               absl::StrCat("step ", committed.step, committed.is_full ? "" : " (export, not a resume point)"));
  if (committed.seconds) step.measure(MetricSample::kCheckpoint, *committed.seconds);
  if (committed.seconds.value_or(0) > 0) job.save_seconds = *committed.seconds;
  // Takes the newest commit in time: after a fall-back to an older step the numbers begin lower again.
  if (committed.is_full) {
    const int64_t before = job.progress.committed_step;
    job.progress.committed_step = word.is_current() ? committed.step : std::max(before, committed.step);
    job.progress.commit_time_ns = step.now.wall_ns();
  }
  job.progress.failed_save.clear();
  take_finished_step(step, job, word.attempt, committed.step, word.change);
  put_progress(word.change, job);
  if (!word.is_current()) return;
  take_progress(step, job, committed.step, committed.is_full ? committed.step : 0, word.change);
  if (apply(job, job::JobEvent::kCheckpointDone)) end_explanation(job);
}

void take_event(Step& step, EventSource& word, const CheckpointFailed& failed) {
  LiveJob& job = word.job;
  job.progress.failed_save = absl::StrCat("step ", failed.step, ": ", failed.reason);
  report_repeating_event(step, word, "CheckpointFailed", job.progress.failed_save);
  step.measure(MetricSample::kCheckpointFailed, 1);
  put_progress(word.change, job);
  show(word.change, job);
  // The save is over. Earlier checkpoints stay, and training continues.
  if (!word.is_current() || !apply(job, job::JobEvent::kCheckpointDone)) return;
  end_explanation(job);
  word.is_job_changed = true;  // Also when the warning is one of many and makes no event.
}

void take_event(Step& step, EventSource& word, const CheckpointRejected& rejected) {
  report_repeating_event(step, word, "CheckpointRejected", absl::StrCat("step ", rejected.step, ": ", rejected.reason));
}

void take_event(Step& step, EventSource& word, const TraceWritten& trace) {
  report_event(step, word, "TraceRecorded",
               absl::StrCat("steps ", trace.first_step, " to ", trace.last_step, ", ", mebibytes(trace.bytes)));
}

void take_event(Step& step, EventSource& word, const RankWarning& warning) {
  report_repeating_event(step, word, "RankWarning", warning.message);
}

void take_event(Step& step, EventSource& word, const RankError& error) {
  report_repeating_event(step, word, "RankError", absl::StrCat(error.reason, ": ", error.message), "error");
  if (!word.is_current()) return;
  add_error(word.job,
            {word.rank, error.error_class, error.reason, error.message, error.holder_job, error.holder_attempt,
             error.is_same_job},
            word.change);
}

void take_event(Step& step, EventSource& word, const TrainingEnded& ended) {
  if (word.rank != 0) return;
  if (ended.is_stopped) report_event(step, word, "AttemptStopped", absl::StrCat("saved and left at step ", ended.step));
  take_finished_step(step, word.job, word.attempt, ended.step, word.change);
  put_progress(word.change, word.job);
}

// Takes each line once: after a reconnect, earlier ones are sent again.
void take_lines(Step& step, EventSource& word, const RankEvents& events) {
  int64_t& cursor = step.state.spools.cursor({word.job.record.uid, word.attempt, word.rank});
  for (const ReportedSpoolDamage& damage : events.damage) take_damage(step, word, damage);
  for (const RankLine& line : events.lines) {
    if (line.sequence <= cursor) continue;
    cursor = line.sequence;
    if (line.event) std::visit([&](const auto& what) { take_event(step, word, what); }, *line.event);
  }
  if (!events.lines.empty()) {
    const std::string key = cursor_key(word.job.record.uid, word.attempt, word.rank);
    word.change.mutations.push_back(store::put(key, absl::StrCat(cursor)));
  }
  if (word.is_job_changed) put_job(word.change, word.job);
}

}  // namespace

void on_rank_events(Step& step, Node& node, const RankEvents& events) {
  const auto& [uid, attempt] = events.attempt;
  const int rank = events.rank;
  if (events.lines.empty() && events.damage.empty()) return;
  if (!knows(step.state, uid)) return;  // They stay on the node for the controller that knows the job.
  if (!may_report(step.state, node, events.attempt, rank)) {
    return note_foreign(step, node,
                        absl::StrCat("events of rank ", rank, " of attempt ", attempt, " of job uid ", uid,
                                     ", which is not placed there"));
  }
  Change change;
  if (LiveJob* live = step.state.jobs.find(uid)) {
    EventSource word{*live, attempt, rank, node.record.name, change};
    take_lines(step, word, events);
  }
  if (events.lines.empty()) return step.commit(std::move(change));
  // A job that has ended has nothing left to learn. Its lines are acknowledged all the same.
  Send ack{node.session, EventsAck{events.attempt, rank, events.lines.back().sequence}};
  change.then.sends.push_back(std::move(ack));
  step.commit(std::move(change));
}

// A job shows the last step that its current attempt has finished, whether or not that step was logged. Between
// attempts it shows the last attempt's.
void take_finished_step(Step& step, LiveJob& job, int attempt, int64_t train_step, Change& change) {
  // A late event of an ended attempt is still progress.
  if (!job.attempt || job.attempt->record.number != attempt) {
    change_ended(job, attempt, change, [train_step](job::AttemptRecord& record) {
      if (train_step <= record.last_step) return false;
      record.last_step = train_step;
      return true;
    });
    if (!job.attempt) job.progress.step = std::max(job.progress.step, train_step);
    if (job::note_progress(job.record.history, train_step, 0)) put_job(change, job);
    return;
  }
  take_progress(step, job, train_step, 0, change);
  if (job.progress.step == job.attempt->record.last_step) return;
  job.progress.step = job.attempt->record.last_step;
  show(change, job);
}

}  // namespace titan::core
