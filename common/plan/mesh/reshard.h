#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::mesh {

// How long a block's gathered weights stay (FSDP2's reshard_after_forward, by block).
enum class Keep {
  kNothing,        // Freed after the forward pass and again after the backward pass.
  kUntilBackward,  // Freed after the backward pass.
  kUntilStepEnd,   // Gathered once a step.
};

// For each of a rank's blocks, by parallelism.fsdp_reshard_after_forward. "default": the head and the last layer, which
// the backward pass needs first, stay between the two passes (they are two consecutive blocks); where nothing is
// gathered from other ranks, converted weights stay for the whole step. In a pipeline the microbatches come and go in
// between: weights are gathered once a step unless memory matters more ("always").
// Errors: InvalidArgument, for a policy that is none.
absl::StatusOr<std::vector<Keep>> keep_plan(const std::string& policy, size_t num_blocks, bool gathers, bool pipelined);

}  // namespace titan::mesh
