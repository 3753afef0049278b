#pragma once

// Counts a rank's gradients from the backward pass of a block to the end of the step: unsharded sums, reductions in
// flight and gradient shards. Functions that add memory record the peak.

#include "common/plan/memory/rank_memory.h"

namespace titan::memory {

// Counts a block's unsharded gradients, in the compute type. `last`: they are the step's last ones.
void deliver(RankMemory& rank, const EstimatedBlock& block, bool last);
// Counts the reduction of all gradients of a stage, if it is done once per step.
void reduce(RankMemory& rank, int stage);
// Counts the end of the reductions in flight.
void finish_reduction(RankMemory& rank);
// Counts the rounding of a unit's sum in the reduce type to its gradient shard.
void round_sum(RankMemory& rank, ShardedUnit& one);

}  // namespace titan::memory
