#include "common/plan/mesh/reshard.h"

#include "absl/strings/str_cat.h"

namespace titan::mesh {

absl::StatusOr<std::vector<Keep>> keep_plan(const std::string& policy, size_t num_blocks, bool gathers,
                                            bool pipelined) {
  if (policy == "always") return std::vector<Keep>(num_blocks, Keep::kNothing);
  if (policy == "never") return std::vector<Keep>(num_blocks, pipelined ? Keep::kUntilStepEnd : Keep::kUntilBackward);
  if (policy != "default") {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.fsdp_reshard_after_forward: \"", policy, "\" is not one of default, always, never"));
  }
  if (!gathers || pipelined) return std::vector<Keep>(num_blocks, Keep::kUntilStepEnd);
  std::vector<Keep> plan(num_blocks, Keep::kNothing);
  for (size_t i = num_blocks < 2 ? 0 : num_blocks - 2; i < num_blocks; ++i) plan[i] = Keep::kUntilBackward;
  return plan;
}

}  // namespace titan::mesh
