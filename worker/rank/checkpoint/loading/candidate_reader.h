#pragma once

// Reads one rank's part of a load candidate that is a step of Titan or a folder of torch.distributed.checkpoint.
// stage_load() in load_candidate.h chooses between them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"

namespace titan::checkpoint {

// Pieces for slices that hold them encoded are read whole: as many at once as fit into this many bytes, or one of any
// size.
inline constexpr int64_t kFormsMemory = int64_t{256} << 20;

// Like stage_load(), for a step of Titan, which is read directly into the live tensors. Needs kReadMemory in addition
// to the state and, for encoded slices, kFormsMemory or the largest of them.
absl::StatusOr<StagedLoad> load_step(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                     StepReading reading);

// Rank 0: checks that the folder can be read at all; sets manifest_crc and, unless model_only, step.
absl::Status inspect_dcp(storage::Files& files, Candidate& candidate);

// Like stage_load(), for a folder of torch.distributed.checkpoint.
absl::StatusOr<StagedLoad> stage_dcp(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude);

}  // namespace titan::checkpoint
