#pragma once

// Marks failures in which the weights belong to another model: they are reported to the user, and not retried.

namespace titan::checkpoint {

// Part of the message of such a status; its code is FailedPrecondition.
inline constexpr char kModelMismatch[] = "MODEL_MISMATCH: ";

// Part of every reader's message about tensors that are missing, superfluous or of another shape.
inline constexpr char kDoesNotFit[] = " does not fit this model";

}  // namespace titan::checkpoint
