#pragma once

#include <ATen/ATen.h>

namespace titan::nn {

constexpr int64_t kIgnoredLabel = -100;

// Sum (not mean) of the cross-entropies of logits [B, T, V] against labels [B, T], in at least fp32. Divide by the
// valid tokens of the whole step: then neither the mesh nor the number of microbatches changes the loss or its
// gradient.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels);

// Labels that count, int64 scalar.
at::Tensor count_valid(const at::Tensor& labels);

}  // namespace titan::nn
