#pragma once

// Counts the weights that a rank gathers for its blocks, in the order in which ShardUnit (worker/rank/parallel) gathers
// and frees them. Functions that add memory record the peak.

#include "common/plan/memory/rank_memory.h"

namespace titan::memory {

// Counts the start of a gather of the block's weights.
void begin_unshard(RankMemory& rank, const EstimatedBlock& block);
// Counts the block's gathered weights.
void unshard(RankMemory& rank, const EstimatedBlock& block);
// Subtracts the weights that are freed after a pass: all except those that the engine keeps.
void reshard(RankMemory& rank, const EstimatedBlock& block, bool after_forward);
// Subtracts the gathered weights of one unit, if it has any apart from its shard.
void free_gathered(RankMemory& rank, ShardedUnit& one);

}  // namespace titan::memory
