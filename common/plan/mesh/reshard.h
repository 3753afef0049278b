#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::mesh {

// When a block's gathered weights are freed (FSDP2's reshard_after_forward, per block).
enum class Reshard {
  kAfterForward,   // Freed after the forward pass and again after the backward pass.
  kAfterBackward,  // Freed after the backward pass.
  kAtStepEnd,      // Freed at the end of the step, so gathered once per step.
};

// Returns the choice for each of a rank's blocks under `policy` (parallelism.fsdp_reshard_after_forward). "default":
// the head and the last layer, which the backward pass needs first, are kept between the passes (they are the last two
// blocks). Without a gather (`gathers` false), converted weights are kept for the whole step. In a pipeline,
// microbatches alternate between the passes, so weights are gathered once per step unless memory matters more
// ("always").
// Errors: InvalidArgument for an unknown policy.
absl::StatusOr<std::vector<Reshard>> reshard_plan(const std::string& policy, size_t num_blocks, bool gathers,
                                                  bool pipelined);

}  // namespace titan::mesh
