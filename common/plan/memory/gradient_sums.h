#pragma once

// Counts a rank's gradients from the backward pass of a block to the end of the step: whole sums, reductions in flight
// and gradient shards. Every function notes the peak where the rank holds most.

#include "common/plan/memory/rank_memory.h"

namespace titan::memory {

// A block's whole gradients are there, in the type that is computed with. `last`: they are the step's last ones.
void deliver(RankMemory& rank, const Block& block, bool last);
// All gradients of a stage are reduced, where that is done once a step.
void reduce(RankMemory& rank, int stage);
// The reductions in flight have arrived.
void finish_reduction(RankMemory& rank);
// A unit's sum in the wire's type becomes its gradient shard.
void round_sum(RankMemory& rank, ShardedUnit& one);

}  // namespace titan::memory
