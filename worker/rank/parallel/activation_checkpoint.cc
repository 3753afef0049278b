#include "worker/rank/parallel/activation_checkpoint.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::parallel {
namespace {

// Every how many blocks one is recomputed; 0: never.
absl::StatusOr<int> recompute_every(const CheckpointOptions& options) {
  if (options.mode == "none") return 0;
  if (options.mode == "full" || options.mode == "memory_budget") return 1;
  if (options.mode != "selective") {
    return absl::InvalidArgumentError(absl::StrCat("activation_checkpoint.mode: \"", options.mode,
                                                   "\" is not one of full, selective, memory_budget and none"));
  }
  if (options.selective_ac_option == "op") return 1;
  int every = 0;
  if (!absl::SimpleAtoi(options.selective_ac_option, &every) || every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("activation_checkpoint.selective_ac_option: \"",
                                                   options.selective_ac_option,
                                                   "\" is neither \"op\" nor a number from 0"));
  }
  return every == 0 ? 1 : every;
}

std::shared_ptr<nn::KeepPolicy> policy_for(const CheckpointOptions& options, nn::Block& block) {
  if (options.mode == "memory_budget") {
    Planned planned;
    if (options.planned) {
      planned = [tell = options.planned, name = block.name()](const auto& choices, const KeepChoice& chosen) {
        tell(name, choices, chosen);
      };
    }
    return keep_by_budget(options.memory_budget, std::move(planned));
  }
  if (options.mode == "selective" && options.selective_ac_option == "op")
    return keep_by_operation(block, options.per_op_sac_force_recompute_mm_shapes_by_fqns);
  return nullptr;
}

// Block "layers.7" has index 7.
bool is_listed(const CheckpointOptions& options, const nn::Block& block) {
  return std::any_of(options.layers.begin(), options.layers.end(),
                     [&](int64_t index) { return block.name() == absl::StrCat("layers.", index); });
}

}  // namespace

absl::StatusOr<std::vector<BlockCheckpoint>> checkpoint_plan(const CheckpointOptions& options,
                                                             const std::vector<nn::Block*>& blocks) {
  const absl::StatusOr<int> every = recompute_every(options);
  if (!every.ok()) return every.status();
  if (options.mode == "memory_budget" && !(options.memory_budget >= 0 && options.memory_budget <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("activation_checkpoint.memory_budget: ", options.memory_budget, " is not from 0 to 1"));
  }
  std::vector<BlockCheckpoint> plan(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool counts =
        options.layers.empty() ? (static_cast<int>(i) + 1) % std::max(*every, 1) == 0 : is_listed(options, *blocks[i]);
    plan[i].recompute = *every > 0 && counts;
    if (plan[i].recompute) plan[i].keep = policy_for(options, *blocks[i]);
  }
  return plan;
}

}  // namespace titan::parallel
