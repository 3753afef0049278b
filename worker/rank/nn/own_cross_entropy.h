#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/comm/group.h"

// Cross-entropy by Titan's own kernels (own_rows_take(logits, Part::kLoss)): logits are read as they are, and their
// gradient is written in their type, so that no copy in fp32 exists. Shared by the loss of whole rows and that of ranks
// with parts of the vocabulary.
namespace titan::nn {

// Of logits [rows, columns], each fp32 [rows]. A label is a column; one outside of them is another rank's, or ignored.
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
