#pragma once

// A step of ours as a job's start: what one rank reads of it, straight into its live tensors.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/loading/loading.h"

namespace titan::checkpoint {

// Tensors that a slice keeps in another form are read whole: as many at once as fit into this, and one of any size.
inline constexpr int64_t kFormsMemory = int64_t{256} << 20;

// As stage_load(). Takes kReadMemory beside the state, for slices of another form kFormsMemory or the largest of them.
absl::StatusOr<StagedLoad> load_step(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                     StepReading reading);

}  // namespace titan::checkpoint
