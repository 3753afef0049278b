#include "worker/parallel/activation_checkpoint.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::parallel {

absl::StatusOr<std::vector<bool>> recompute_plan(const std::string& mode, const std::string& selective_option,
                                                 int num_blocks) {
  std::vector<bool> plan(num_blocks, mode == "full");
  if (mode == "full" || mode == "none") return plan;
  if (mode != "selective") {
    return absl::UnimplementedError(
        absl::StrCat("activation_checkpoint.mode = \"", mode, "\" is not supported yet; use full, selective or none"));
  }
  if (selective_option == "op") {
    return absl::UnimplementedError(
        "activation_checkpoint.selective_ac_option = \"op\" is not supported yet; use a number or mode = \"full\"");
  }
  int every = 0;
  if (!absl::SimpleAtoi(selective_option, &every) || every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("activation_checkpoint.selective_ac_option: \"", selective_option,
                                                   "\" is neither \"op\" nor a number from 0"));
  }
  for (int block = 0; block < num_blocks; ++block) plan[block] = every == 0 || (block + 1) % every == 0;
  return plan;
}

}  // namespace titan::parallel
