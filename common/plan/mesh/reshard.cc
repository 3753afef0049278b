#include "common/plan/mesh/reshard.h"

#include "absl/strings/str_cat.h"

namespace titan::mesh {

absl::StatusOr<std::vector<Reshard>> reshard_plan(const std::string& policy, size_t num_blocks, bool gathers,
                                                  bool pipelined) {
  if (policy == "always") return std::vector<Reshard>(num_blocks, Reshard::kAfterForward);
  if (policy == "never")
    return std::vector<Reshard>(num_blocks, pipelined ? Reshard::kAtStepEnd : Reshard::kAfterBackward);
  if (policy != "default") {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.fsdp_reshard_after_forward: \"", policy, "\" is not one of default, always, never"));
  }
  if (!gathers || pipelined) return std::vector<Reshard>(num_blocks, Reshard::kAtStepEnd);
  std::vector<Reshard> plan(num_blocks, Reshard::kAfterForward);
  for (size_t i = num_blocks < 2 ? 0 : num_blocks - 2; i < num_blocks; ++i) plan[i] = Reshard::kAfterBackward;
  return plan;
}

}  // namespace titan::mesh
