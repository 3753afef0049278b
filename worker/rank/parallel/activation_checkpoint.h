#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/nn/kept_results.h"
#include "worker/rank/parallel/keep_policy.h"

namespace titan::parallel {

// The keys of [activation_checkpoint].
struct CheckpointOptions {
  std::string mode = "none";
  std::string selective_ac_option = "2";
  std::vector<std::string> per_op_sac_force_recompute_mm_shapes_by_fqns;
  double memory_budget = 0.5;
  std::vector<int64_t> layers;  // Indices of the layers that the mode counts for; empty: every layer.
  // Told each block's choices under a memory budget, when they are known; may be empty.
  std::function<void(const std::string& block, const std::vector<KeepChoice>& choices, const KeepChoice& chosen)>
      planned;
};

// How one block does its backward pass.
struct BlockCheckpoint {
  bool recompute = false;                // Runs forward again instead of keeping its activations.
  std::shared_ptr<nn::KeepPolicy> keep;  // What it keeps nevertheless; null: only its input.
};

// For these transformer blocks, in their order. mode "full": all recompute; "selective" with option "N": every Nth,
// counted from 1 (0: all), with "op": all, keep_by_operation(); "memory_budget": all, keep_by_budget(); "none": none.
// With `layers` that holds for those of them that are here, and no number N counts.
// Errors: InvalidArgument naming the key.
absl::StatusOr<std::vector<BlockCheckpoint>> checkpoint_plan(const CheckpointOptions& options,
                                                             const std::vector<nn::Block*>& blocks);

}  // namespace titan::parallel
