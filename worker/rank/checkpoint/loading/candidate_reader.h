#pragma once

// What one rank reads of a load candidate that is a step of Titan's own or a folder of torch.distributed.checkpoint;
// stage_load() in load_candidate.h chooses between them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"

namespace titan::checkpoint {

// Tensors that a slice keeps in another form are read whole: as many at once as fit into this, and one of any size.
inline constexpr int64_t kFormsMemory = int64_t{256} << 20;

// As stage_load(), of a step of Titan's own, which goes straight into the live tensors. Takes kReadMemory besides the
// state, for slices of another form kFormsMemory or the largest of them.
absl::StatusOr<StagedLoad> load_step(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                     StepReading reading);

// Rank 0: checks that the folder can be read at all; fills in manifest_crc and step.
absl::Status inspect_dcp(storage::Files& files, Candidate& candidate);

// As stage_load(), of a folder of torch.distributed.checkpoint.
absl::StatusOr<StagedLoad> stage_dcp(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude);

}  // namespace titan::checkpoint
