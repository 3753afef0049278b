#pragma once

#include <ATen/ATen.h>

#include <cstdint>

// How tokens get into the order of their experts and back. Every backward pass is a gather too, in a fixed order: no
// atomic additions, and no copy of a row is kept beyond what the gradients need. bf16 rows, and on the CPU the order
// itself, go to Titan's own kernels where they are chosen (worker/rank/kernels/choice.h): a row and its score in one
// pass. Else as few of LibTorch's operations as for one choice, which gather all choices' rows and widen them.
namespace titan::nn {

// The rows [tokens * choices] sorted by expert, each a token's one choice; equal experts keep the tokens' order.
struct ExpertOrder {
  at::Tensor rows;    // int64 [tokens * choices]: token * choices + choice that stands at each sorted place.
  at::Tensor tokens;  // int64 [tokens * choices]: the token alone.
  at::Tensor places;  // int64 [tokens, choices]: the sorted place of each token's choices.
};
// experts: int64 [tokens, choices], each below num_experts.
ExpertOrder order_by_expert(const at::Tensor& experts, int64_t num_experts);

// x [tokens, d] to sorted rows [tokens * choices, d], times scores [tokens, choices] in at least fp32 when they are
// defined.
at::Tensor spread(const at::Tensor& x, const at::Tensor& scores, const ExpertOrder& order);

// Sorted rows [tokens * choices, d] to the sum of each token's choices [tokens, d], in at least fp32, weighted by
// scores [tokens, choices] when they are defined.
at::Tensor combine(const at::Tensor& rows, const at::Tensor& scores, const ExpertOrder& order);

// x[order] of dim 0; `inverse` leads back.
at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& order, const at::Tensor& inverse);

}  // namespace titan::nn
