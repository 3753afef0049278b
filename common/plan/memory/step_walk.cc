#include "common/plan/memory/step_walk.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "common/plan/config/validate.h"
#include "common/plan/memory/gathered_weights.h"
#include "common/plan/memory/gradient_sums.h"

namespace titan::memory {
namespace {

using pipeline::Action;
using pipeline::ComputationType;

void forward(RankMemory& rank, int stage) {
  std::vector<EstimatedBlock>& blocks = rank.stages.at(stage);
  begin_unshard(rank, blocks.front());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const EstimatedBlock& block = blocks[i];
    unshard(rank, block);
    if (i + 1 < blocks.size()) begin_unshard(rank, blocks[i + 1]);
    update_peak(rank, (block.recomputed ? block.memory.first_pass + block.kept : block.memory.forward) + rank.unpacked);
    rank.now.activations += block.memory.input + block.kept;
    reshard(rank, block, /*after_forward=*/true);
  }
}

// Runs one block's backward pass, from the gradient of its output to that of its input.
void run_back(RankMemory& rank, const EstimatedBlock& block, bool split) {
  rank.now.activations -= block.kept;
  if (block.recomputed) update_peak(rank, block.memory.forward - block.memory.input + rank.unpacked);
  const bool deferred = split && block.memory.defers;
  for (const Moment& moment : block.memory.backward) {
    const auto gradients = static_cast<int64_t>(block.trained * static_cast<double>(moment.weight_gradients));
    update_peak(rank, moment.activations + rank.unpacked, deferred ? 0 : gradients * rank.bytes.compute);
  }
  rank.now.activations -= block.memory.output;  // Frees its gradient. The input's gradient takes the input's place.
}

void backward(RankMemory& rank, int stage, bool split, bool last) {
  std::vector<EstimatedBlock>& blocks = rank.stages.at(stage);
  const auto needs = [](const EstimatedBlock& block) { return block.reads_weights || block.recomputed; };
  if (needs(blocks.back())) begin_unshard(rank, blocks.back());
  rank.now.activations += blocks.back().memory.output;
  for (size_t i = blocks.size(); i-- > 0;) {
    const EstimatedBlock& block = blocks[i];
    if (needs(block)) unshard(rank, block);
    if (i > 0 && blocks[i - 1].reads_weights) begin_unshard(rank, blocks[i - 1]);
    run_back(rank, block, split);
    if (split) {
      rank.now.activations += block.memory.for_weights;
      // Not a matmul, so its gradient is computed at once.
      if (!block.reads_weights && rank.once) deliver(rank, block, last);
    } else {
      deliver(rank, block, last);
    }
    reshard(rank, block, /*after_forward=*/false);
  }
  rank.now.activations -= blocks.front().memory.input;
  finish_reduction(rank);
}

void weight_gradient(RankMemory& rank, int stage, bool last) {
  std::vector<EstimatedBlock>& blocks = rank.stages.at(stage);
  for (size_t i = blocks.size(); i-- > 0;) {
    const EstimatedBlock& block = blocks[i];
    if (!block.reads_weights && rank.once) continue;
    rank.now.activations -= block.memory.for_weights;
    deliver(rank, block, last);
  }
  finish_reduction(rank);
}

void run_schedule(RankMemory& rank, const std::vector<pipeline::ScheduleStep>& steps, bool last) {
  std::map<int, int> open;  // By stage: passes that produce weight gradients and have not begun.
  const auto brings = [](ComputationType work) {
    return work == ComputationType::kBackward || work == ComputationType::kWeightGradient;
  };
  for (const pipeline::ScheduleStep& step : steps) {
    for (const Action& action : step.actions) open[action.stage] += brings(action.work);
  }
  std::set<int> reduced;
  for (const pipeline::ScheduleStep& step : steps) {
    for (const Action& action : step.actions) {
      const bool ends = brings(action.work) && --open[action.stage] == 0 && last;
      switch (action.work) {
        case ComputationType::kForward:
          forward(rank, action.stage);
          break;
        case ComputationType::kBackward:
          backward(rank, action.stage, /*split=*/false, ends);
          break;
        case ComputationType::kInputGradient:
          backward(rank, action.stage, /*split=*/true, ends);
          break;
        case ComputationType::kWeightGradient:
          weight_gradient(rank, action.stage, ends);
          break;
        case ComputationType::kReduce:
          if (last && rank.once && reduced.insert(action.stage).second) reduce(rank, action.stage);
          break;
      }
    }
  }
  for (const auto& [stage, blocks] : rank.stages) {
    if (last && rank.once && reduced.insert(stage).second) reduce(rank, stage);
  }
}

// Sums over replicas in a type other than the shard's are additional tensors. A tied embedding's two ranks exchange
// their gradients after the gathered weights are freed: one copy is sent and one received.
void finish(RankMemory& rank) {
  const bool in_place = rank.rounds_once && !rank.config.training.enable_cpu_offload;  // The sums already exist.
  if (rank.bytes.reduce != rank.bytes.master && rank.replicas && !in_place) {
    int64_t copies = 0;
    for (const auto& one : rank.units)
      copies += one->freed || !is_trained(*one) ? 0 : one->unit.shard * rank.bytes.reduce;
    update_peak(rank, 0, copies);
  }
  for (const auto& one : rank.units) round_sum(rank, *one);
  if (rank.shared == nullptr || !is_trained(*rank.shared)) return;
  for (const auto& one : rank.units) free_gathered(rank, *one);
  update_peak(rank, 0, 2 * rank.shared->unit.shard * rank.bytes.master);
}

// Counts a round of Muon's matrices while the next one arrives: the received data, the matrix, its transposed copy, the
// product and the result.
void exchange_matrices(RankMemory& rank) {
  constexpr int64_t kTensors = 5;
  if (rank.muon_round == 0) return;
  for (const auto& one : rank.units) free_gathered(rank, *one);
  rank.now.buffers += kTensors * rank.muon_round * (rank.bytes.master == 8 ? 8 : 2);
  update_peak(rank);
}

}  // namespace

void walk_step(RankMemory& rank, const std::vector<pipeline::ScheduleStep>& steps) {
  // The first run differs. Later runs have the same peak as the second.
  const int64_t runs = std::min<int64_t>(2, config::accumulation_steps(rank.config));
  for (int64_t i = 0; i < runs; ++i) run_schedule(rank, steps, /*last=*/i + 1 == runs);
  finish(rank);
  exchange_matrices(rank);
}

}  // namespace titan::memory
