#pragma once

// The cross-entropy loss, of whole logits or of a head's input with some columns of the vocabulary at a time. Titan's
// own kernels (can_use_row_kernels(logits, TrainingPart::kLoss)) read logits as they are and write the gradient in
// their type, so that no copy in fp32 exists. The functions on SoftmaxStats serve the loss of whole rows and that of
// ranks with parts of the vocabulary.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"

namespace titan::nn {

constexpr int64_t kIgnoreIndex = -100;

// Returns the sum [] (not the mean) of the cross-entropies of logits [B, T, V] against labels int64 [B, T], in at least
// fp32. Divide it by the number of valid tokens of the whole step, so that neither the mesh nor the number of
// microbatches changes the loss or its gradient.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels);

// Returns bool [...]: which labels, int64 [...], are kIgnoreIndex. Any other label outside [0, vocabulary) fails the
// step, without a wait for the device.
at::Tensor ignored_labels(const at::Tensor& labels, int64_t vocabulary);

// Maps the last block's output to the sum [] of its loss terms. Of a language model these are the cross-entropies with
// the labels int64 [B, T]; `parallel` replaces it if ranks hold parts of the vocabulary, and all of them get the whole
// sum. Other models take what they compare with from the microbatch's context.
class Loss {
 public:
  // Takes the last block's output, of any shape.
  using OfOutput = std::function<at::Tensor(const at::Tensor& output, const MicrobatchContext& context)>;
  // Takes logits [B, T, V].
  using OfLogits = std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)>;
  // Takes the head's input [B, T, D] and computes the logits of `columns` of the vocabulary at a time.
  using ByParts = std::function<at::Tensor(const at::Tensor& input, const Parameter& weight, const at::Tensor& labels,
                                           int64_t columns)>;

  template <typename Function>
  requires std::is_invocable_r_v<at::Tensor, Function, const at::Tensor&, const at::Tensor&> Loss(Function of_logits)
      : of_logits_(std::move(of_logits)) {}  // NOLINT: any such function is a loss.
  template <typename Function>
  requires std::is_invocable_r_v<at::Tensor, Function, const at::Tensor&, const MicrobatchContext&> Loss(
      Function of_output)
      : of_output_(std::move(of_output)) {}  // NOLINT: the same.

  // Returns the sum [] for the last block's output.
  at::Tensor operator()(const at::Tensor& output, const MicrobatchContext& context) const {
    return of_output_ ? of_output_(output, context) : of_logits_(output, context.labels);
  }
  // logits [B, T, V], labels int64 [B, T] -> []
  at::Tensor operator()(const at::Tensor& logits, const at::Tensor& labels) const {
    TORCH_CHECK(of_logits_, "the loss of this model is not one of logits and labels");
    return of_logits_(logits, labels);
  }

  ByParts by_parts;  // The same loss. Empty: it needs all logits, as a library's loss does.

 private:
  OfLogits of_logits_;  // Empty if of_output_ is set.
  OfOutput of_output_;
};

// A last block that can compute the loss [] of its input [B, T, D] without all logits at once.
class HasLoss {
 public:
  virtual ~HasLoss() = default;
  virtual at::Tensor loss(const at::Tensor& input, const MicrobatchContext& context, const Loss& loss) = 0;
};

// Returns the number of labels int64 [...] that count, int64 [].
at::Tensor count_valid(const at::Tensor& labels);

// Returns cross_entropy_sum(input weight^T, labels), [], with `columns` of the vocabulary at a time, so that the full
// logits never exist. The forward pass merges each token's maximum, sum of exponentials and label's logit over the
// parts (Milakov and Gimelshein, arXiv 1805.02867). The backward pass computes each part's logits again and turns them
// into gradients there, which costs a third more products. Saved in between are the input and two numbers per token.
//
// input is [B, T, D], the weight [V, D] and labels int64 [B, T]. `vocabulary` is null, or the ranks that each hold a
// part of the weight's rows: all get the whole sum, and each a part of the input's gradient. With a split backward pass
// (matmul_autograd.h) the weight's gradient is computed together with the input's, because the logits' gradient is not
// kept. `softcap` above 0: the loss is that of soft_capped() logits.
at::Tensor head_cross_entropy_sum(const at::Tensor& input, const Parameter& weight, const at::Tensor& labels,
                                  int64_t columns, const comm::Group* vocabulary = nullptr, double softcap = 0);

// Returns cap * tanh(logits / cap) of logits [...], each operation rounded to their type, as Gemma 2 computes it. The
// backward pass saves only the result.
at::Tensor soft_capped(const at::Tensor& logits, double cap);

// Figures of logits [rows, columns], fp32 [rows] each. A label is the index of a column. A label outside the columns
// belongs to another rank or is ignored.
struct SoftmaxStats {
  at::Tensor maximum;      // [rows]
  at::Tensor sum;          // [rows], of exp(logit - maximum).
  at::Tensor label_logit;  // [rows], 0 if the label is not one of the columns.
};
// Returns the figures of logits [rows, columns] and labels int64 [rows].
SoftmaxStats softmax_stats(const at::Tensor& logits, const at::Tensor& labels);

// Merges logits [rows, columns] of the columns that begin at `first` into the figures of the columns before. `first` =
// 0 starts over.
void add_softmax_stats(SoftmaxStats& figures, const at::Tensor& logits, const at::Tensor& labels, int64_t first);

// Replaces the figures of this rank's columns by those of all ranks' columns, with two collectives.
void all_reduce_stats(const comm::Group& ranks, SoftmaxStats& figures);

// Returns fp32 []: the sum of log(sum) + maximum - label_logit over the labels int64 [rows] that are not ignored. The
// figures cover the whole vocabulary. The type and device of `logits` [rows, columns] select the kernel.
at::Tensor loss_of(const at::Tensor& logits, const SoftmaxStats& figures, const at::Tensor& labels);

// Writes (softmax - [id is the label]) * scale to gradient [rows, columns], which may be the logits, with zeros for
// ignored labels. maximum and sum are fp32 [rows], and scale is []. The first column has the id `first`.
void write_logit_gradient(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& scale, int64_t first = 0);

}  // namespace titan::nn
