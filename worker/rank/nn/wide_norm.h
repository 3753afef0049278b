#pragma once

#include <ATen/ATen.h>

#include "worker/rank/comm/group.h"

namespace titan::nn {

// Returns x / sqrt(mean(x x) + eps) * (weight + offset) over the last dimension of x [..., dim], for a weight [dim]. It
// is computed in at least fp32 and rounded once: weights that are added to 1 (Gemma) have values near 0, whose sums
// with 1 would lose most of their digits in bf16. The backward pass saves x, the weight and one factor per row.
//
// `ranks`, if set, each have `dim` channels of rows that are longer by their number. One all-reduce of a number per row
// adds up the squares forward, and one the terms of the input's gradient backward. The group must outlive the graph.
at::Tensor wide_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset,
                         const comm::Group* ranks = nullptr);

}  // namespace titan::nn
