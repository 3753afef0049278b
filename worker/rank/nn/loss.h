#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "worker/rank/nn/block.h"

namespace titan::nn {

constexpr int64_t kIgnoredLabel = -100;

// Sum (not mean) of the cross-entropies of logits [B, T, V] against labels [B, T], in at least fp32. Divide by the
// valid tokens of the whole step: then neither the mesh nor the number of microbatches changes the loss or its
// gradient.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels);

// Which labels do not count. One that does and is not below `vocabulary` fails the step, without a wait for the device.
at::Tensor ignored_labels(const at::Tensor& labels, int64_t vocabulary);

// From the last block's output and the labels [B, T] to the sum of the cross-entropies of these labels. `parallel`
// replaces it when ranks hold parts of the vocabulary; then all of them get the whole sum.
class Loss {
 public:
  using OfLogits = std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)>;
  // Of what a head's matrix reads, with the logits of some columns of the vocabulary at a time (head_loss.h).
  using ByParts = std::function<at::Tensor(const at::Tensor& input, const Parameter& weight, const at::Tensor& labels,
                                           int64_t columns)>;

  template <typename Function>
  requires std::is_invocable_r_v<at::Tensor, Function, const at::Tensor&, const at::Tensor&> Loss(Function of_logits)
      : of_logits_(std::move(of_logits)) {}  // NOLINT: any such function is a loss.

  at::Tensor operator()(const at::Tensor& logits, const at::Tensor& labels) const { return of_logits_(logits, labels); }

  ByParts by_parts;  // The same loss; empty: it needs all logits, as one of a library's own does.

 private:
  OfLogits of_logits_;
};

// A last block that can tell the loss of its input without all logits at once.
class HasLoss {
 public:
  virtual ~HasLoss() = default;
  virtual at::Tensor loss(const at::Tensor& input, const MicrobatchContext& context, const Loss& loss) = 0;
};

// Labels that count, int64 scalar.
at::Tensor count_valid(const at::Tensor& labels);

}  // namespace titan::nn
