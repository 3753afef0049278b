#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::job {

enum class JobState {
  kQueued,     // Waits for nodes.
  kReserving,  // Nodes chosen; the nodes prepare, the leader binds the rendezvous.
  kStarting,   // Ranks launched; no step finished yet in this attempt.
  kRunning,
  kCheckpointing,  // Running, and saving on demand.
  kStopping,       // Saving at a step edge, then leaving for good.
  kRecovering,     // Between attempts; keeps its surviving nodes reserved.
  kSucceeded,
  kFailed,
  kCancelled,
};

enum class JobEvent {
  kPlaced,               // An attempt got its nodes.
  kPrepared,             // Every node is prepared and the store's address is known.
  kFirstStep,            // The attempt finished a step.
  kCheckpointRequested,  // Somebody wants a checkpoint now.
  kCheckpointDone,       // It is committed, or was given up.
  kStopRequested,        // Somebody cancels; ranks are alive.
  kStopped,              // Cancelled, and nothing runs any more.
  kAttemptFailed,        // The attempt cannot go on; what is left of it is being stopped.
  kFinished,             // Every rank left with success.
  kGaveUp,               // Nothing runs any more, and its restart policy or its time limit allows no other attempt.
};

// UPPER_SNAKE as on the wire; stored in records, so a name never changes its meaning.
absl::string_view name(JobState state);
absl::string_view name(JobEvent event);
absl::StatusOr<JobState> state_from_name(absl::string_view name);

// The whole life of a job. Errors: FailedPrecondition naming both, when the event means nothing in that state.
absl::StatusOr<JobState> next_state(JobState from, JobEvent event);

// A final state never changes.
bool is_final(JobState state);

}  // namespace titan::job
