#include "common/plan/memory/gathered_weights.h"

namespace titan::memory {

using mesh::Reshard;

void begin_unshard(RankMemory& rank, const EstimatedBlock& block) {
  for (ShardedUnit* one : block.units) {
    if (one->there || one->coming) continue;
    one->coming = true;
    if (one->unit.direct) {
      rank.now.weights += one->unit.padded() * gathered_bytes(rank, one->unit);
    } else if (one->unit.ranks > 1) {
      rank.now.buffers += one->unit.padded() * gathered_bytes(rank, one->unit);
    }
  }
  update_peak(rank);
}

void unshard(RankMemory& rank, const EstimatedBlock& block) {
  for (ShardedUnit* one : block.units) {
    if (one->there) continue;
    begin_unshard(rank, block);
    if (!one->unit.direct) {
      rank.now.weights += one->unit.whole * gathered_bytes(rank, one->unit);
      update_peak(rank);
      if (one->unit.ranks > 1) rank.now.buffers -= one->unit.padded() * gathered_bytes(rank, one->unit);
    }
    one->there = true;
    one->coming = false;
  }
}

void free_gathered(RankMemory& rank, ShardedUnit& one) {
  if (!one.there || one.aliased) return;
  one.there = false;
  rank.now.weights -= (one.unit.direct ? one.unit.padded() : one.unit.whole) * gathered_bytes(rank, one.unit);
}

void reshard(RankMemory& rank, const EstimatedBlock& block, bool after_forward) {
  for (ShardedUnit* one : block.units) {
    const bool stays = after_forward ? one->keep != Reshard::kAfterForward : one->keep == Reshard::kAtStepEnd;
    if (!stays) free_gathered(rank, *one);
  }
}

}  // namespace titan::memory
