#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::job {

enum class JobState {
  kQueued,     // Waits for nodes.
  kReserving,  // Nodes are chosen. They prepare, and the leader binds the rendezvous port.
  kStarting,   // Ranks are launched. No step of this attempt has finished yet.
  kRunning,
  kCheckpointing,  // Running, and saving on request.
  kStopping,       // Saving at a step edge, then leaving for good; or ranks left behind may still train.
  kRecovering,     // Between attempts. Its surviving nodes stay reserved.
  kSucceeded,
  kFailed,
  kCancelled,
};

enum class JobEvent {
  kPlaced,               // An attempt got its nodes.
  kPrepared,             // Every node is prepared, and the store's address is known.
  kFirstStep,            // The attempt finished a step.
  kCheckpointRequested,  // A checkpoint was requested.
  kCheckpointDone,       // It was committed or given up.
  kStopRequested,        // A stop was requested, and ranks may be alive.
  kStopped,              // Cancelled, and nothing runs any more.
  kAttemptFailed,        // The attempt cannot continue. Its remaining ranks are being stopped.
  kFinished,             // Every rank succeeded.
  kGaveUp,               // Nothing runs any more, and the restart policy or the time limit allows no other attempt.
};

// Names are UPPER_SNAKE for states, as on the wire. Records store them, so a name never changes its meaning.
absl::string_view name(JobState state);
absl::string_view name(JobEvent event);
absl::StatusOr<JobState> state_from_name(absl::string_view name);  // Errors: InvalidArgument.

// Returns the state after the event. Errors: FailedPrecondition, which names both, if the event has no meaning in that
// state.
absl::StatusOr<JobState> next_state(JobState from, JobEvent event);

// A final state never changes.
bool is_final(JobState state);

}  // namespace titan::job
