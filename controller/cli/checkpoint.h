#pragma once

// Carries out the verb `checkpoint`, and finds out from a job's state what became of the save that was requested.

#include <optional>

#include "absl/status/status.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// What became of the checkpoint that a user asked for. `asked` is the job as CheckpointJob answered it, `now` a later
// state of it. Nothing while the save continues; OK when a checkpoint is committed that the job can resume from.
// Errors: Aborted, with the reason CHECKPOINT_FAILED, or ATTEMPT_ENDED when the request ended with the attempt that was
// to save; for a job that is over the error is that of its end, which report_end() says better.
std::optional<absl::Status> save_outcome(const v1::Job& asked, const v1::Job& now);

}  // namespace titan::cli
