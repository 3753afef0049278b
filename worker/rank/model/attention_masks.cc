#include "worker/rank/model/attention_masks.h"

#include <algorithm>

namespace titan::model {

nn::AttentionMask attention_mask(const models::ModelSpec& spec, int64_t layer) {
  return {.window = spec.layer_window(layer),
          .chunk = spec.layer_chunk(layer),
          .documents = spec.mask == models::Mask::kBlockCausal};
}

std::vector<parallel::LayersOfMask> attention_masks(const models::ModelSpec& spec) {
  std::vector<parallel::LayersOfMask> masks;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const nn::AttentionMask mask = attention_mask(spec, layer);
    const auto known = std::find_if(masks.begin(), masks.end(), [&](const auto& one) { return one.mask == mask; });
    if (known == masks.end()) {
      masks.push_back({mask});
    } else {
      ++known->layers;
    }
  }
  return masks;
}

}  // namespace titan::model
