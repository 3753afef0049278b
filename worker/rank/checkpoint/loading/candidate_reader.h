#pragma once

// Reads one rank's part of a load candidate: a step of ours, or a folder of torch.distributed.checkpoint.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"

namespace titan::checkpoint {

// A step of ours as a job's start: what one rank reads of it, straight into its live tensors.

// Tensors that a slice keeps in another form are read whole: as many at once as fit into this, and one of any size.
inline constexpr int64_t kFormsMemory = int64_t{256} << 20;

// As stage_load(). Takes kReadMemory beside the state, for slices of another form kFormsMemory or the largest of them.
absl::StatusOr<StagedLoad> load_step(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                     StepReading reading);

// A folder of torch.distributed.checkpoint as a job's start: what one rank reads of it.

// Rank 0: that it can be read at all; fills in manifest_crc and step.
absl::Status inspect_dcp(storage::Files& files, Candidate& candidate);

// As stage_load().
absl::StatusOr<StagedLoad> stage_dcp(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude);

}  // namespace titan::checkpoint
