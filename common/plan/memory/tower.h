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
  // The tower's result [rows, width], the input of the decoder's embedding: rows of this rank, and of all context ranks
  // after they exchanged their results. The width is the decoder's, or a multiple of it if the first layers of the
  // decoder get results, too.
  int64_t rows = 0, gathered_rows = 0;
  int64_t width = 0;
  int64_t held = 0;  // Bytes that exist during a whole step: pixels, and what the layers need of their places.
  bool rotates_tokens = false;  // The decoder has a rotation for each token, instead of a table for all positions.
};

// Returns nothing for a model without a tower, or with one that has no estimate. Each kind of tower is a case here.
std::optional<TowerMemory> tower_memory(const config::JobConfig& config, const models::ModelSpec& spec);

// Returns the names of the blocks before the decoder's embedding; none for other models.
std::set<std::string> tower_blocks(const models::ModelSpec& spec);

}  // namespace titan::memory
