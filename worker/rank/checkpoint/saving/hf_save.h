#pragma once

// Makes the last save as Hugging Face files, on all ranks together.

#include "absl/status/status.h"
#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/steps/session.h"

namespace titan::checkpoint {

// Collective. First saves the model in a private folder as an ordinary step, because a Hugging Face tensor needs the
// slices of all ranks. Then the ranks share the files, and rank 0 moves them into place. In a store they are written in
// place under unique names, and rank 0 publishes only their index. FailedPrecondition if the model has no Hugging Face
// names.
absl::Status save_as_hugging_face(Session& session, const Save& save);

}  // namespace titan::checkpoint
