#include "common/plan/memory/gradient_sums.h"

#include <algorithm>
#include <utility>

namespace titan::memory {
namespace {

// Counts a unit's sum in the reduce type, in addition to its gradient shard and on the same device.
void open_sum(RankMemory& rank, ShardedUnit& one) {
  if (std::exchange(one.wide, true)) return;
  const int64_t bytes = one.unit.shard * rank.bytes.reduce;
  if (!rank.config.training.enable_cpu_offload) {
    rank.now.gradients += bytes;
    return;
  }
  rank.host_sums += bytes;
  rank.peak_host_sums = std::max(rank.peak_host_sums, rank.host_sums);
}

// Counts a unit's new gradients in its sum. `last`: they are the step's last ones. If they are also its only ones, they
// are rounded while they are copied, without a sum.
void add_gradients(RankMemory& rank, ShardedUnit& one, bool last) {
  const bool only = last && one.users == 1 && !one.wide && !rank.replicas;
  if (one.unit.ranks == 1 && rank.rounds_once && !only) {
    open_sum(rank, one);
    update_peak(rank);
  } else if (one.unit.ranks == 1) {
    if (std::exchange(one.freed, false)) rank.now.gradients += one.unit.shard * rank.bytes.master;
    update_peak(rank);
  } else if (!std::exchange(one.summed, true)) {
    rank.now.gradients += one.unit.whole * rank.bytes.reduce;
    if (rank.bytes.compute != rank.bytes.reduce) update_peak(rank);
  }
  rank.now.gradients -= one.unit.whole * rank.bytes.compute;
}

void begin_reduce(RankMemory& rank, ShardedUnit& one, bool whole_sum) {
  rank.now.buffers += one.unit.padded() * rank.bytes.reduce;
  update_peak(rank);
  rank.now.gradients -= one.unit.whole * (whole_sum ? rank.bytes.reduce : rank.bytes.compute);
  one.summed = false;
  rank.now.buffers += one.unit.shard * rank.bytes.reduce;
  update_peak(rank);
}

void complete(RankMemory& rank, ShardedUnit& one) {
  if (!steps_early(rank.config) || one.freed) return;
  one.freed = true;
  rank.now.gradients -= one.unit.shard * rank.bytes.master;
}

}  // namespace

void deliver(RankMemory& rank, const EstimatedBlock& block, bool last) {
  for (const ShardedUnit* one : block.units)
    rank.now.gradients += is_trained(*one) ? one->unit.whole * rank.bytes.compute : 0;
  update_peak(rank);
  if (!rank.once) finish_reduction(rank);
  for (ShardedUnit* one : block.units) {
    if (!is_trained(*one)) continue;
    const bool sums = rank.once || one->unit.ranks == 1 || one->users > 1;
    if (sums) add_gradients(rank, *one, last && !rank.once);
    if (rank.once) continue;
    if (one->users > 1 && (!last || ++one->brought < one->users)) continue;  // Waits for another block or pass.
    if (one->unit.ranks > 1) begin_reduce(rank, *one, sums);
    rank.reducing.push_back(one);
  }
  rank.reducing_last = last;
}

void round_sum(RankMemory& rank, ShardedUnit& one) {
  if (!std::exchange(one.wide, false)) return;
  if (std::exchange(one.freed, false)) rank.now.gradients += one.unit.shard * rank.bytes.master;
  update_peak(rank);
  (rank.config.training.enable_cpu_offload ? rank.host_sums : rank.now.gradients) -= one.unit.shard * rank.bytes.reduce;
}

void finish_reduction(RankMemory& rank) {
  for (ShardedUnit* one : std::exchange(rank.reducing, {})) {
    if (one->unit.ranks > 1) {
      rank.now.buffers -= one->unit.padded() * rank.bytes.reduce;
      if (rank.rounds_once) {
        if (one->wide) update_peak(rank);
        rank.now.buffers -= one->unit.shard * rank.bytes.reduce;
        open_sum(rank, *one);  // The reduced gradients, if they are the first.
      } else {
        if (std::exchange(one->freed, false)) rank.now.gradients += one->unit.shard * rank.bytes.master;
        update_peak(rank);
        rank.now.buffers -= one->unit.shard * rank.bytes.reduce;
      }
    }
    if (!rank.reducing_last) continue;
    if (!rank.replicas || steps_early(rank.config)) round_sum(rank, *one);
    complete(rank, *one);
  }
}

void reduce(RankMemory& rank, int stage) {
  std::vector<EstimatedBlock>& blocks = rank.stages.at(stage);
  for (size_t i = blocks.size(); i-- > 0;) {
    finish_reduction(rank);
    for (ShardedUnit* one : blocks[i].units) {
      if (!is_trained(*one)) continue;
      if (one->unit.ranks > 1) begin_reduce(rank, *one, /*whole_sum=*/true);
      rank.reducing.push_back(one);
    }
    rank.reducing_last = true;
  }
  finish_reduction(rank);
}

}  // namespace titan::memory
