#include "common/config/chosen_model.h"

#include <utility>

#include "common/models/registry.h"

namespace titan::config {

absl::StatusOr<models::ModelSpec> chosen_model(const Model& model) {
  absl::StatusOr<models::ModelSpec> spec = models::find(model.name, model.flavor);
  if (!spec.ok()) return spec;
  return with_choices(*std::move(spec), model);
}

models::ModelSpec with_choices(models::ModelSpec spec, const Model& model) {
  if (!model.attn_mask_type) return spec;
  spec.mask = *model.attn_mask_type == "block_causal" ? models::Mask::kBlockCausal : models::Mask::kCausal;
  return spec;
}

}  // namespace titan::config
