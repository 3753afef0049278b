#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::parallel {

// Which of `num_blocks` transformer blocks run their forward pass again during the backward pass instead of keeping
// their activations. mode "full": all; "selective" with option "N": every Nth, counted from 1 (0: all); "none": none.
// Errors: Unimplemented for option "op" and mode "memory_budget"; InvalidArgument for anything else.
absl::StatusOr<std::vector<bool>> recompute_plan(const std::string& mode, const std::string& selective_option,
                                                 int num_blocks);

}  // namespace titan::parallel
