#pragma once

// The last save as Hugging Face files, made by all ranks together.

#include "absl/status/status.h"
#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/steps/session.h"

namespace titan::checkpoint {

// Collective. The model goes to a private folder as an ordinary step first, since a Hugging Face tensor needs all
// ranks' slices; then the files are shared out, and rank 0 moves them into place, or publishes their index alone in a
// store, where they are written in place under names of their own. FailedPrecondition: the model has no
// Hugging Face names.
absl::Status save_as_hugging_face(Session& session, const Save& save);

}  // namespace titan::checkpoint
