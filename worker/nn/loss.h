#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "worker/nn/block.h"

namespace titan::nn {

constexpr int64_t kIgnoredLabel = -100;

// Sum (not mean) of the cross-entropies of logits [B, T, V] against labels [B, T], in at least fp32. Divide by the
// valid tokens of the whole step: then neither the mesh nor the number of microbatches changes the loss or its
// gradient.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels);

// From the last block's output and the labels [B, T] to the sum of the cross-entropies of these labels. `parallel`
// replaces it when ranks hold parts of the vocabulary; then all of them get the whole sum.
using Loss = std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)>;

// A last block that can tell the loss of its input without all logits at once. `of_logits` is the loss of the logits
// that forward() gives, for when they are few.
class HasLoss {
 public:
  virtual ~HasLoss() = default;
  virtual at::Tensor loss(const at::Tensor& input, const MicrobatchContext& context, const Loss& of_logits) = 0;
};

// Labels that count, int64 scalar.
at::Tensor count_valid(const at::Tensor& labels);

}  // namespace titan::nn
