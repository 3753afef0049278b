#pragma once

#include <ATen/ATen.h>

#include <cstdint>

// Moves tokens into the order of their experts and back. Every backward pass is a gather too, in a fixed order, without
// atomic additions. Rows are copied and saved only as far as the gradients need. bf16 rows, and on the CPU the order
// itself, use Titan's own kernels if chosen (worker/rank/kernels/choice.h), which take a row and its score in one pass.
// Otherwise LibTorch's operations gather all choices' rows and widen them, in as few calls as for one choice.
namespace titan::nn {

// Order of the rows [tokens * choices], one per choice of a token, sorted by expert. Rows of one expert keep the
// tokens' order.
struct ExpertOrder {
  at::Tensor rows;    // int64 [tokens * choices]: token * choices + choice at each sorted position.
  at::Tensor tokens;  // int64 [tokens * choices]: its token.
  at::Tensor places;  // int64 [tokens, choices]: sorted position of each token's choices.
};
// experts is int64 [tokens, choices], each below num_experts.
ExpertOrder order_by_expert(const at::Tensor& experts, int64_t num_experts);

// Spreads x [tokens, d] to sorted rows [tokens * choices, d], times scores [tokens, choices] in at least fp32 if these
// are defined.
at::Tensor spread(const at::Tensor& x, const at::Tensor& scores, const ExpertOrder& order);

// Combines sorted rows [tokens * choices, d] to the sum of each token's choices [tokens, d], in at least fp32, weighted
// by scores [tokens, choices] if these are defined.
at::Tensor combine(const at::Tensor& rows, const at::Tensor& scores, const ExpertOrder& order);

// Returns x[order] along dim 0 of x [n, ...], for order int64 [n]. `inverse`, int64 [n], is the inverse permutation.
at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& order, const at::Tensor& inverse);

}  // namespace titan::nn
