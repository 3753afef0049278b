#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/block.h"

namespace titan::nn {

// The cross-entropy of a head's products without their logits as a whole: cross_entropy_sum(input weight^T, labels)
// with `columns` of the vocabulary at a time. The forward pass merges each token's maximum, sum of exponentials and
// label's logit over the parts (Milakov and Gimelshein, arXiv 1805.02867); the backward pass computes each part's
// logits once more and turns them into gradients there, so that a third more products are the price. Kept in between:
// the input and two numbers a token.
//
// input [B, T, D], labels [B, T]; `vocabulary` null, or the ranks that hold a part of the weight's rows each: all get
// the whole sum, and each a part of the input's gradient. With a split backward pass (deferred_gradients.h) the
// weight's gradient is there with the input's: the logits' gradient is not kept for later.
at::Tensor head_cross_entropy_sum(const at::Tensor& input, const Parameter& weight, const at::Tensor& labels,
                                  int64_t columns, const comm::Group* vocabulary = nullptr);

}  // namespace titan::nn
