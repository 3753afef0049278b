#pragma once

// Layers that only Flux has. Its blocks consist of these and of the general ones.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/flux.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/layers.h"

namespace titan::model::flux {

// Declares a linear layer with bias, whose weight is drawn from Xavier's uniform distribution (Glorot and Bengio 2010)
// for its own shape, and whose bias is zero. `name` is for example "img_in".
nn::Linear xavier_linear(const nn::Declare& declare, const std::string& name, int64_t in, int64_t out);
// The same with a weight and a bias of zeros.
nn::Linear zero_linear(const nn::Declare& declare, const std::string& name, int64_t in, int64_t out);

// Two linear layers that turn the embedding of a time, or the vector of the text, into the vector that modulates all
// blocks: out_layer(silu(in_layer(x))). Drawn from N(0, 0.02).
class VectorLayers {
 public:
  VectorLayers(const nn::Declare& declare, const std::string& name, int64_t in, int64_t dim);
  at::Tensor forward(const at::Tensor& x) const;  // [B, in] -> [B, dim]

  nn::Linear in_layer, out_layer;
};

// One of the changes that the vector makes to a sublayer: of its normed input, and of its result.
struct Modulation {
  at::Tensor shift, scale;  // [B, 1, dim]
  at::Tensor gate;          // [B, 1, dim]. Undefined in the last block.
};

// Computes the modulations, three parts each (two without gate), with `lin` from silu(vec) [B, dim].
std::vector<Modulation> modulations(const nn::Linear& lin, const at::Tensor& activated, int64_t parts);

// Returns (1 + scale) * norm(x) + shift, where the norm has no weights: [B, T, dim].
at::Tensor modulated_norm(const at::Tensor& x, const Modulation& modulation);

// Returns x + gate * y, [B, T, dim].
at::Tensor add_gated(const at::Tensor& x, const Modulation& modulation, const at::Tensor& y);

// RMSNorm of each query and key head.
struct HeadNorms {
  // `name` is for example "single_blocks.0.norm".
  HeadNorms(const nn::Declare& declare, const std::string& name, int64_t head_dim);
  nn::RmsNorm query_norm, key_norm;
};

// Heads of one rank: [B, T, heads, head_dim] each.
struct Heads {
  at::Tensor q, k, v;
};

// Splits q | k | v, side by side in fused [B, T, 3 * heads * head_dim], into heads, and norms those of q and k.
Heads split_heads(const at::Tensor& fused, int64_t head_dim, const HeadNorms& norms);

// Rotates queries and keys and attends over all tokens: [B, T, heads * head_dim]. The rotation is that of
// rotation_table().
at::Tensor rotate_and_attend(const Heads& heads, const at::Tensor& rotation, const nn::AttentionCore& core);

}  // namespace titan::model::flux
