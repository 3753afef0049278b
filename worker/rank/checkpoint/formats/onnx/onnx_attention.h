#pragma once

// Self-attention with a cache as nodes of a graph: grouped queries and multi-head latent attention.

#include <cstdint>
#include <string>

#include "worker/rank/checkpoint/formats/onnx/onnx_layers.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_masks.h"

namespace titan::checkpoint::onnx {

// Inputs that the attention of all layers shares.
struct AttentionInputs {
  Masks* masks = nullptr;
  std::string cos, sin;     // Names of the rotation's tables, [positions, rotated channels / 2].
  double latent_scale = 0;  // Factor of the logits of latent attention.
  std::string temperature;  // [B, S, 1]: factor of queries without positions. Empty: none.
};

// Size of the key and value heads in the cache of a layer, whose values are padded to the size of the keys: runtimes
// keep both in buffers of one shape.
int64_t cached_head_size(const models::ModelSpec& spec);
int64_t cached_heads(const models::ModelSpec& spec);

// Appends the attention of a layer, with its inputs past_key_values.N.{key,value} and outputs present.N.{key,value},
// [B, heads, tokens, head size]. x and the result are [B, S, dim].
std::string attention(const Builder& builder, const AttentionInputs& inputs, int64_t layer, const std::string& x);

}  // namespace titan::checkpoint::onnx
