#include "common/plan/config/chosen_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/models/registry.h"

namespace titan::config {

absl::StatusOr<models::ModelSpec> chosen_model(const Model& model) {
  absl::StatusOr<models::ModelSpec> spec = models::find(model.name, model.flavor);
  if (!spec.ok()) return spec;
  return with_choices(*std::move(spec), model);
}

std::vector<std::string> length_warnings(const JobConfig& config, const models::ModelSpec& spec) {
  std::vector<std::string> warnings;
  const auto look = [&](const char* key, std::int64_t seq_len) {
    if (seq_len <= spec.max_seq_len || spec.max_seq_len == 0) return;
    warnings.push_back(absl::StrCat(key, " = ", seq_len, " is beyond the ", spec.max_seq_len, " tokens that ",
                                    spec.name, " ", spec.flavor,
                                    " is made for (max_seq_len): its RoPE is extrapolated"));
  };
  look("training.seq_len", config.training.seq_len);
  if (config.validation.enable) look("validation.seq_len", config.validation.seq_len);
  return warnings;
}

models::ModelSpec with_choices(models::ModelSpec spec, const Model& model) {
  if (model.load_balance_coeff && spec.moe) spec.moe->load_balance_coeff = *model.load_balance_coeff;
  if (!model.attn_mask_type) return spec;
  spec.mask = *model.attn_mask_type == "block_causal" ? models::Mask::kBlockCausal : models::Mask::kCausal;
  return spec;
}

}  // namespace titan::config
