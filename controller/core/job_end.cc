// How a job ends: the event that reports it, and what is released.

#include "absl/strings/str_cat.h"
#include "controller/core/keys.h"
#include "controller/core/step.h"

namespace titan::core {
namespace {

using job::JobState;

void drop_cursors(Spools& spools, Change& change, const std::string& uid) {
  for (const auto& [job, attempt, rank] : spools.drop(uid)) {
    change.mutations.push_back(store::erase(cursor_key(job, attempt, rank)));
  }
}

}  // namespace

void end_job(Step& step, LiveJob& job, Change& change) {
  job.record.end_time_ns = step.now.wall_ns();
  job.record.reserved.clear();
  job.clear_pending();
  step.state.folders.drop(job.record.uid);
  job::EventRecord event;
  switch (job.record.state) {
    case JobState::kSucceeded:
      event.reason = "JobSucceeded";
      event.message = absl::StrCat("finished at step ", job.record.history.best_step);
      break;
    case JobState::kCancelled:
      event.reason = "JobCancelled";
      event.message = absl::StrCat("at step ", job.record.history.best_step,
                                   job.progress.committed_step > 0 ? absl::StrCat("; its newest checkpoint is of step ",
                                                                                  job.progress.committed_step)
                                                                   : "; it has no checkpoint");
      break;
    default:
      event.reason = "JobFailed";
      event.message = absl::StrCat(job.record.failure_reason, ": ", job.record.failure_message);
      event.severity = "error";
  }
  add_event(step, change, job, std::move(event));
  drop_cursors(step.state.spools, change, job.record.uid);
  put_job(change, job);
}

// Clients see its last view from now on.
void leave_queue(State& state, LiveJob& job) {
  const std::string uid = job.record.uid;
  state.queue.leave(uid);
  state.jobs.end(uid, view_of(job));
}

}  // namespace titan::core
