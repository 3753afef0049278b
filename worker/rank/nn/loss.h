#pragma once

// The cross-entropy loss, of whole logits or of a head's input with some columns of the vocabulary at a time. Titan's
// own kernels (own_rows_take(logits, Part::kLoss)) read logits as they are and write the gradient in their type, so
// that no copy in fp32 exists; the figures at the end are shared by the loss of whole rows and that of ranks with parts
// of the vocabulary.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "worker/rank/comm/group.h"
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
  // Of what a head's matrix reads, with the logits of some columns of the vocabulary at a time.
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

// The cross-entropy of a head's products without their logits as a whole: cross_entropy_sum(input weight^T, labels)
// with `columns` of the vocabulary at a time. The forward pass merges each token's maximum, sum of exponentials and
// label's logit over the parts (Milakov and Gimelshein, arXiv 1805.02867); the backward pass computes each part's
// logits once more and turns them into gradients there, so that a third more products are the price. Kept in between:
// the input and two numbers a token.
//
// input [B, T, D], labels [B, T]; `vocabulary` null, or the ranks that hold a part of the weight's rows each: all get
// the whole sum, and each a part of the input's gradient. With a split backward pass (matmul_autograd.h) the weight's
// gradient is there with the input's: the logits' gradient is not kept for later.
at::Tensor head_cross_entropy_sum(const at::Tensor& input, const Parameter& weight, const at::Tensor& labels,
                                  int64_t columns, const comm::Group* vocabulary = nullptr);

// Figures of logits [rows, columns], each fp32 [rows]. A label is a column; one outside of them is another rank's, or
// ignored.
struct SoftmaxFigures {
  at::Tensor maximum;
  at::Tensor sum;          // Of exp(logit - maximum).
  at::Tensor label_logit;  // 0 where the label is no column.
};
SoftmaxFigures softmax_figures(const at::Tensor& logits, const at::Tensor& labels);

// The same of further columns, [first, first + logits.size(1)), merged into figures of those before; begins with 0.
void add_softmax_figures(SoftmaxFigures& figures, const at::Tensor& logits, const at::Tensor& labels, int64_t first);

// From the figures of each rank's columns to those of all, whatever computed them: two collectives.
void merge_over(const comm::Group& ranks, SoftmaxFigures& figures);

// The sum over labels [rows] that are not ignored of log(sum) + maximum - label_logit, for figures of the whole
// vocabulary of `logits`; an fp32 scalar.
at::Tensor loss_of(const at::Tensor& logits, const SoftmaxFigures& figures, const at::Tensor& labels);

// (softmax - [id is the label]) * scale, zeros for ignored labels, into `gradient`, which may be the logits; the first
// column is that of the id `first`.
void write_logit_gradient(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& scale, int64_t first = 0);

}  // namespace titan::nn
