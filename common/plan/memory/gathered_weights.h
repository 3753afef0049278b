#pragma once

// Counts the weights that a rank gathers for its blocks, like ShardUnit (worker/rank/parallel). Every function records
// the peak at its largest moment.

#include "common/plan/memory/rank_memory.h"

namespace titan::memory {

// Counts the start of a gather of the block's weights.
void begin_unshard(RankMemory& rank, const EstimatedBlock& block);
// Counts the block's gathered weights.
void unshard(RankMemory& rank, const EstimatedBlock& block);
// Counts the weights that are freed after a pass, all except those that the engine keeps.
void reshard(RankMemory& rank, const EstimatedBlock& block, bool after_forward);
// Counts the freed weights of one unit.
void free_gathered(RankMemory& rank, ShardedUnit& one);

}  // namespace titan::memory
