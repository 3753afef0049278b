#pragma once

// Carries out the verb `checkpoint`, and finds out from a job's state what became of the save that was requested.

#include <optional>

#include "absl/status/status.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Returns the outcome of a checkpoint that a user requested. `asked` is the job that CheckpointJob returned, `now` a
// later state of it. Nothing while the save continues; OK when a checkpoint is committed that the job can resume from.
// Errors: Aborted, with the reason CHECKPOINT_FAILED, or ATTEMPT_ENDED when the attempt ended before it had saved. For
// a job that is over the error describes its end, which report_end() describes better.
std::optional<absl::Status> save_outcome(const v1::Job& asked, const v1::Job& now);

}  // namespace titan::cli
