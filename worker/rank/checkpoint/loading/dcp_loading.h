#pragma once

// A folder of torch.distributed.checkpoint as a job's start: what one rank reads of it.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/loading/loading.h"

namespace titan::checkpoint {

// Rank 0: that it can be read at all; fills in manifest_crc and step.
absl::Status inspect_dcp(storage::Files& files, Candidate& candidate);

// As stage_load().
absl::StatusOr<StagedLoad> stage_dcp(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude);

}  // namespace titan::checkpoint
