#include "controller/job/state.h"

#include "absl/strings/str_cat.h"

namespace titan::job {

absl::string_view name(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kReserving:
      return "RESERVING";
    case JobState::kStarting:
      return "STARTING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kCheckpointing:
      return "CHECKPOINTING";
    case JobState::kStopping:
      return "STOPPING";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "UNKNOWN";
}

absl::string_view name(JobEvent event) {
  switch (event) {
    case JobEvent::kPlaced:
      return "placed";
    case JobEvent::kPrepared:
      return "prepared";
    case JobEvent::kFirstStep:
      return "first step";
    case JobEvent::kCheckpointRequested:
      return "checkpoint requested";
    case JobEvent::kCheckpointDone:
      return "checkpoint done";
    case JobEvent::kStopRequested:
      return "stop requested";
    case JobEvent::kStopped:
      return "stopped";
    case JobEvent::kAttemptFailed:
      return "attempt failed";
    case JobEvent::kFinished:
      return "finished";
    case JobEvent::kGaveUp:
      return "gave up";
  }
  return "unknown";
}

absl::StatusOr<JobState> state_from_name(absl::string_view text) {
  for (int i = 0; i <= static_cast<int>(JobState::kCancelled); ++i) {
    if (name(static_cast<JobState>(i)) == text) return static_cast<JobState>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("no job state is called '", text, "'"));
}

bool is_final(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed || state == JobState::kCancelled;
}

namespace {

// True if ranks of the attempt exist, or may exist.
bool has_ranks(JobState state) {
  return state == JobState::kReserving || state == JobState::kStarting || state == JobState::kRunning ||
         state == JobState::kCheckpointing;
}

}  // namespace

absl::StatusOr<JobState> next_state(JobState from, JobEvent event) {
  switch (event) {
    case JobEvent::kPlaced:
      if (from == JobState::kQueued || from == JobState::kRecovering) return JobState::kReserving;
      break;
    case JobEvent::kPrepared:
      if (from == JobState::kReserving) return JobState::kStarting;
      break;
    case JobEvent::kFirstStep:
      if (from == JobState::kStarting) return JobState::kRunning;
      break;
    case JobEvent::kCheckpointRequested:
      if (from == JobState::kRunning) return JobState::kCheckpointing;
      break;
    case JobEvent::kCheckpointDone:
      if (from == JobState::kCheckpointing) return JobState::kRunning;
      break;
    case JobEvent::kStopRequested:  // While recovering, the rest of the failed attempt is still being stopped.
      if (has_ranks(from) || from == JobState::kRecovering) return JobState::kStopping;
      break;
    case JobEvent::kStopped:
      if (from == JobState::kQueued || from == JobState::kRecovering || from == JobState::kStopping) {
        return JobState::kCancelled;
      }
      break;
    case JobEvent::kAttemptFailed:
      if (has_ranks(from)) return JobState::kRecovering;
      break;
    case JobEvent::kFinished:  // From kStarting: a resumed job had no step left.
      if (from == JobState::kStarting || from == JobState::kRunning || from == JobState::kCheckpointing ||
          from == JobState::kStopping) {
        return JobState::kSucceeded;
      }
      break;
    case JobEvent::kGaveUp:
      if (from == JobState::kRecovering || from == JobState::kStopping) return JobState::kFailed;
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat("job is ", name(from), ": cannot apply '", name(event), "'"));
}

}  // namespace titan::job
