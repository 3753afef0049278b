#pragma once

// By what a failure is known in which weights are another model's: it is told to the user, and not tried again.

namespace titan::checkpoint {

// Stands in the message of a status that says so; the code is FailedPrecondition.
inline constexpr char kModelMismatch[] = "MODEL_MISMATCH: ";

// In what every reader of weights says of tensors that are missing, too many or of another shape.
inline constexpr char kDoesNotFit[] = " does not fit this model";

}  // namespace titan::checkpoint
