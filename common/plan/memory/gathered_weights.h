#pragma once

// Counts the weights that a rank gathers for its blocks, as ShardUnit does it (worker/rank/parallel). Every function
// notes the peak where the rank holds most.

#include "common/plan/memory/rank_memory.h"

namespace titan::memory {

// A gather of the block's weights is started.
void begin_unshard(RankMemory& rank, const Block& block);
// The block's weights are there.
void unshard(RankMemory& rank, const Block& block);
// The block's weights are freed after a pass, but for those that the engine keeps.
void reshard(RankMemory& rank, const Block& block, bool after_forward);
void free_gathered(RankMemory& rank, ShardedUnit& one);

}  // namespace titan::memory
