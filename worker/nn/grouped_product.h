#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/nn/block.h"

namespace titan::nn {

// Rows sorted by group: the first rows[0] belong to group 0, and so on. A group may have none.
struct RowGroups {
  std::vector<int64_t> rows;
  at::Tensor ends;  // int32 [groups] on the device, for kernels that need no host; undefined elsewhere.
};

// Groups of a tensor like `x` [sum of rows, ...].
RowGroups group_rows(std::vector<int64_t> rows, const at::Tensor& x);

// x [n, in] times each group's transposed weight [groups, out, in], plus bias_factor times its bias [groups, out]:
// [n, out]. The bias's gradient is not multiplied: with a factor of 1 / ranks the ranks add one whole bias together,
// and each has its whole gradient. One product per group; no copy of a weight is made, and the weight's storage may be
// freed between forward and backward. Weight gradients go through compute_or_defer.
at::Tensor grouped_product(const at::Tensor& x, const Parameter& weight, const Parameter* bias, double bias_factor,
                           const RowGroups& groups);

}  // namespace titan::nn
