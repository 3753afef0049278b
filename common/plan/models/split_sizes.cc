#include "common/plan/models/split_sizes.h"

namespace titan::models {

mesh::Sizes split_sizes(const ModelSpec& spec) {
  mesh::Sizes sizes;
  sizes.n_heads = spec.n_heads;
  sizes.n_kv_heads = spec.attention == Attention::kLatent ? 0 : spec.n_kv_heads;
  sizes.vocab_size = spec.vocab_size;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (!spec.layer_has_experts(layer)) sizes.ffn_hidden = spec.ffn_hidden;
  }
  if (spec.moe.has_value()) {
    sizes.num_experts = spec.moe->num_experts;
    sizes.expert_hidden = spec.moe->hidden;
    sizes.shared_hidden = spec.moe->hidden * spec.moe->num_shared_experts;
  }
  return sizes;
}

}  // namespace titan::models
