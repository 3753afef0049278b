#pragma once

#include <functional>

#include "common/plan/models/model_spec.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/nn/block.h"

// Initial distributions as torchtitan draws them.
namespace titan::model {

// Normal, cut at absolute +-2, as torchtitan does: at these deviations that is no cut at all.
nn::Init truncated(double std);

// For matrices that write to the residual stream: they start smaller the deeper they sit.
nn::Init depth_init(const models::ModelSpec& spec, int64_t layer);

// Deviation dim^-0.5, cut at 3 deviations.
nn::Init head_init(const models::ModelSpec& spec);

// What Llama, Qwen and DeepSeek share: 0.02 for matrices that read the residual stream, depth_init for wo, w2, w3 and
// the router, N(0, 1) for the embedding; a tied embedding is drawn as the head that it is.
DecoderInits common_inits(const models::ModelSpec& spec);

// The same embedding and head around other layers.
DecoderInits inits_with_layers(const models::ModelSpec& spec, std::function<LayerInits(int64_t layer)> layer);

}  // namespace titan::model
