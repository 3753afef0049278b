#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/block.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// x [n, in] times each group's transposed weight [groups, out, in], plus bias_factor times its bias [groups, out]:
// [n, out], and what the weight's adapter adds. The bias's gradient is not multiplied: with a factor of 1 / ranks the
// ranks add one whole bias together, and each has its whole gradient. No copy of a weight is made, and the weight's
// storage may be freed between forward and backward. Weight gradients go through compute_or_defer.
at::Tensor grouped_product(const at::Tensor& x, const Parameter& weight, const Parameter* bias, double bias_factor,
                           const RowGroups& groups);

}  // namespace titan::nn
