#pragma once

// checkpoint_plan() decides from [activation_checkpoint] which blocks recompute their forward pass, and the policies
// which results of the first pass a recomputed block keeps.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/pareto.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::parallel {

using models::KnapsackItem;
using models::ParetoPoint;

// torchtitan's selective checkpointing per operation: attention, reduce-scatters, the all-to-alls of routed tokens, the
// greatest magnitudes that low precision's scales come from, and every other matrix product of the block (the first,
// third, ... in the order of their calls). Products with a matrix of the same shape as one whose module name holds one
// of `recompute_fqns` are always computed again, and not counted; so are those of layers with a bias (another operation
// there, which is not on the list) and of routed experts. Two differences: LibTorch's attention for CPUs is on the
// list, so that all devices compute the same, and Qwen3's copy of the list, which alone lacks the all-to-alls in
// torchtitan 0.2.2, is the same as the others.
std::shared_ptr<nn::RecomputePolicy> keep_by_operation(nn::Block& block,
                                                       const std::vector<std::string>& recompute_fqns);

// Which results to keep under a budget: those that save the most FLOPs of all choices that take at most `budget` (0 to
// 1) of the bytes that all of the block's costly results would take. 0 is full recomputation; 1 computes only
// element-wise operations, norms and routed experts again. Bytes and FLOPs are those of the block's first pass, which
// keeps nothing; they follow from shapes, so that ranks that share a block's collectives choose alike. Routed experts
// and their exchanges are left out because their rows vary from rank to rank: a choice that weighed them could keep a
// collective's result on one rank and repeat the collective on another. A reduce-scatter counts with the product that
// feeds it: one result spares both. Greatest magnitudes, four bytes each, are kept under any budget above 0. `planned`
// is told the choices and the one taken, once; may be empty.
using Planned = std::function<void(const std::vector<ParetoPoint>& choices, const ParetoPoint& chosen)>;
std::shared_ptr<nn::RecomputePolicy> keep_by_budget(double budget, Planned planned);

// The keys of [activation_checkpoint].
struct CheckpointOptions {
  std::string mode = "none";
  std::string selective_ac_option = "2";
  std::vector<std::string> per_op_sac_force_recompute_mm_shapes_by_fqns;
  double memory_budget = 0.5;
  std::vector<int64_t> layers;  // Indices of the layers that the mode counts for; empty: every layer.
  // Told each block's choices under a memory budget, when they are known; may be empty.
  std::function<void(const std::string& block, const std::vector<ParetoPoint>& choices, const ParetoPoint& chosen)>
      planned;
};

// How one block does its backward pass.
struct BlockCheckpoint {
  bool recompute = false;                     // Runs forward again instead of keeping its activations.
  std::shared_ptr<nn::RecomputePolicy> keep;  // What it keeps nevertheless; null: only its input.
};

// For these transformer blocks, in their order. mode "full": all recompute; "selective" with option "N": every Nth,
// counted from 1 (0: all), with "op": all, keep_by_operation(); "memory_budget": all, keep_by_budget(); "none": none.
// With `layers` that holds for those of them that are here, and no number N counts.
// Errors: InvalidArgument naming the key.
absl::StatusOr<std::vector<BlockCheckpoint>> checkpoint_plan(const CheckpointOptions& options,
                                                             const std::vector<nn::Block*>& blocks);

}  // namespace titan::parallel
