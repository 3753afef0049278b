#pragma once

// DeepStack (arXiv 2406.04334): the first layers of Qwen3-VL's language model add the results of some layers of the
// vision tower at image tokens.
//
// Blocks pass on one tensor and get the gradient of nothing else. So the features of later layers travel in additional
// columns: MultimodalEmbedding returns [B, T, (1 + n) * dim], with zeros at text tokens, and each of the first n layers
// adds the next dim columns to its result and drops them. Then their gradients reach the tower through recomputation
// and sharded parameters as all others do, and tensor ranks and context ranks, which have a part of the tokens, have
// the features of just these. The price is that the inputs of the first n layers are larger, in all by n (n + 1) / 2
// times [B, T, dim]. These layers are entry blocks: a pipeline has them in its first stage, so its edges are [B, T,
// dim].

#include <ATen/ATen.h>

#include <cstdint>

#include "common/plan/models/model_spec.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/nn/block.h"

namespace titan::model::qwen3_vl {

// "layers.{index}", one of the first n: maps [B, T, k * dim] to [B, T, (k - 1) * dim], k >= 2.
class DeepstackLayer : public DecoderLayer {
 public:
  DeepstackLayer(const models::ModelSpec& text, int64_t index, const LayerInits& inits, int64_t seq_len);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

 private:
  const int64_t dim_;
};

}  // namespace titan::model::qwen3_vl
