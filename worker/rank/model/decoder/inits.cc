#include "worker/rank/model/decoder/inits.h"

#include <cmath>
#include <utility>

namespace titan::model {

using nn::Init;

Init truncated(double std) { return {Init::Kind::kTruncatedNormal, std, -2.0, 2.0}; }

Init depth_init(const models::ModelSpec& spec, int64_t layer) {
  const int64_t depth = spec.depth_init ? layer + 1 : spec.n_layers;
  return truncated(0.02 / std::sqrt(2.0 * static_cast<double>(depth)));
}

Init head_init(const models::ModelSpec& spec) {
  const double std = 1.0 / std::sqrt(static_cast<double>(spec.dim));
  return {Init::Kind::kTruncatedNormal, std, -3 * std, 3 * std};
}

DecoderInits inits_with_layers(const models::ModelSpec& spec, std::function<LayerInits(int64_t layer)> layer) {
  const Init head = head_init(spec);
  return {.embedding = spec.tied_embeddings ? head : Init{Init::Kind::kNormal, 1.0},
          .head = head,
          .layer = std::move(layer)};
}

DecoderInits common_inits(const models::ModelSpec& spec) {
  return inits_with_layers(spec, [spec](int64_t layer) {
    const Init plain = truncated(0.02), deep = depth_init(spec, layer);
    LayerInits inits{.attention_in = plain, .attention_out = deep, .w1 = plain, .w2_w3 = deep};
    inits.moe.w1_init = plain;
    inits.moe.w2_init = inits.moe.w3_init = inits.moe.gate_init = inits.moe.bias_init = deep;
    inits.moe.shared_w1_init = plain;
    inits.moe.shared_depth_init = deep;
    return inits;
  });
}

}  // namespace titan::model
