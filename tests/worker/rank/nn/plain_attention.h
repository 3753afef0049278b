#pragma once

#include <ATen/ATen.h>

#include <limits>

#include "worker/rank/nn/attention_core.h"

namespace titan::testing {

// Returns the keys that each query of the whole row sees, by the masks' definitions: bool [B or 1, T, T]. documents:
// int64 [B, T].
inline at::Tensor visible_keys(const nn::AttentionMask& mask, const at::Tensor& documents, int64_t tokens) {
  const at::Tensor query = at::arange(tokens).unsqueeze(1), key = at::arange(tokens).unsqueeze(0);
  at::Tensor visible = mask.causal ? key.le(query) : at::ones({tokens, tokens}, at::kBool);
  if (mask.window > 0) visible = visible.logical_and(key.gt(query - mask.window));
  if (mask.chunk > 0) visible = visible.logical_and(key.div(mask.chunk, "floor").eq(query.div(mask.chunk, "floor")));
  visible = visible.unsqueeze(0);
  if (!mask.documents || !documents.defined()) return visible;
  return visible.logical_and(documents.unsqueeze(1).eq(documents.unsqueeze(2)));
}

// Returns the oracle's output [B, H, T, Dv]: softmax attention of the whole row with materialized scores, by plain
// autograd.
inline at::Tensor plain_attention(const nn::AttentionInput& input, const at::Tensor& documents) {
  const int64_t sharing = input.q.size(1) / input.k.size(1), tokens = input.q.size(2);
  const at::Tensor k = input.k.repeat_interleave(sharing, 1), v = input.v.repeat_interleave(sharing, 1);
  const at::Tensor hidden = visible_keys(input.mask, documents, tokens).unsqueeze(1).logical_not();
  at::Tensor scores = at::matmul(input.q, k.transpose(-1, -2)) * input.scale;
  if (input.softcap > 0) scores = input.softcap * at::tanh(scores / input.softcap);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (!input.sinks.defined()) return at::matmul(scores.softmax(-1), v);
  const at::Tensor sinks = input.sinks.view({1, -1, 1, 1}).expand({scores.size(0), -1, tokens, 1});
  return at::matmul(at::cat({scores, sinks}, -1).softmax(-1).narrow(-1, 0, tokens), v);
}

// Draws the documents' numbers of each token, int64 [rows, tokens]. `ends`: the probability that a token is the last of
// its document.
inline at::Tensor random_documents(int64_t rows, int64_t tokens, double ends) {
  const at::Tensor last = at::rand({rows, tokens}).lt(ends).to(at::kLong);
  return last.cumsum(1) - last;
}

}  // namespace titan::testing
