#pragma once

// Estimates the memory of the vision tower before a decoder, on one rank for one microbatch.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/memory/blocks.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/model_spec.h"

namespace titan::memory {

// Every tensor rank has the whole tower. Context ranks encode different images.
struct TowerMemory {
  std::vector<models::BlockActivations> kept;  // Bytes that the tower's blocks keep, in order.
  std::vector<BlockMemory> blocks;             // Memory of the same blocks.
  // The tower's result [patches, width], the input of the decoder's embedding: rows of this rank, and of all context
  // ranks after they exchanged their results.
  int64_t patches = 0, gathered_patches = 0;
  int64_t width = 0;
  int64_t pixel_bytes = 0;  // Size of the pixels that the tower reads.
};

// Returns nothing for a model without a tower, or with one that has no estimate. Each kind of tower is a case here.
std::optional<TowerMemory> tower_memory(const config::JobConfig& config, const models::ModelSpec& spec);

// Returns the names of the blocks before the decoder's embedding; none for other models.
std::set<std::string> tower_blocks(const models::ModelSpec& spec);

}  // namespace titan::memory
