#pragma once

// checkpoint_plan() decides from [activation_checkpoint] which blocks recompute their forward pass. The policies decide
// which results of the first pass a recomputed block saves.

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

// Makes torchtitan's policy of selective checkpointing per operation. It saves attention, reduce-scatters, the
// all-to-alls of routed tokens, the largest magnitudes from which low precision derives its scales, and every other
// matmul of the block (the first, third, ... in call order). Some matmuls are always recomputed and not counted: those
// with a matrix of the same shape as one whose module name contains one of `recompute_fqns`, those of layers with a
// bias (in torchtitan another operation, which is not on the list) and those of routed experts. There are two
// differences. LibTorch's attention for CPUs is on the list, so that all devices recompute the same operations. Qwen3's
// list, the only one without the all-to-alls in torchtitan 0.2.2, equals the others.
std::shared_ptr<nn::RecomputePolicy> selective_op_policy(nn::Block& block,
                                                         const std::vector<std::string>& recompute_fqns);

// Makes a policy that saves the results that avoid the most FLOPs among all choices that take at most `budget` (0 to 1)
// of the bytes of all costly results of the block. 0 is full recomputation; 1 recomputes only element-wise operations,
// norms and routed experts. Bytes and FLOPs are those of the block's first pass, which saves nothing. They follow from
// shapes, so ranks that share a block's collectives choose the same. Routed experts and their exchanges are left out
// because their rows vary between ranks: otherwise one rank could save a collective's result while another repeats the
// collective. A reduce-scatter counts together with the matmul that feeds it, because one result avoids both. Largest
// magnitudes, four bytes each, are saved under any budget above 0. `planned`, which may be empty, is called once with
// the choices and the chosen one.
using Planned = std::function<void(const std::vector<ParetoPoint>& choices, const ParetoPoint& chosen)>;
std::shared_ptr<nn::RecomputePolicy> memory_budget_policy(double budget, Planned planned);

// Keys of [activation_checkpoint].
struct CheckpointOptions {
  std::string mode = "none";
  std::string selective_ac_option = "2";
  std::vector<std::string> per_op_sac_force_recompute_mm_shapes_by_fqns;
  double memory_budget = 0.5;
  std::vector<int64_t> layers;  // Indices of the layers that the mode applies to. Empty: every layer.
  // Called with each block's choices under a memory budget, once they are known. May be empty.
  std::function<void(const std::string& block, const std::vector<ParetoPoint>& choices, const ParetoPoint& chosen)>
      planned;
};

// How one block runs its backward pass.
struct BlockCheckpoint {
  bool recompute = false;                     // Runs forward again instead of saving its activations.
  std::shared_ptr<nn::RecomputePolicy> keep;  // Selects the results to save nevertheless. Null: only the input.
};

// Plans these transformer blocks, given in order. Mode "full": all recompute. "selective" with option "N": every Nth
// recomputes, counted from 1 (0: all); with "op": all, selective_op_policy(). "memory_budget": all,
// memory_budget_policy(). "none": none. A non-empty `layers` restricts the mode to those of the listed layers that are
// in `blocks`, and N is ignored.
//
// Errors: InvalidArgument, which names the key.
absl::StatusOr<std::vector<BlockCheckpoint>> checkpoint_plan(const CheckpointOptions& options,
                                                             const std::vector<nn::Block*>& blocks);

}  // namespace titan::parallel
