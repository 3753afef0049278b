#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/product_recipe.h"
#include "worker/rank/nn/row_groups.h"

// Products of experts' rows in eight bits by the device (LibTorch's _scaled_grouped_mm), with a scale a row of each
// operand. Its kernel wants groups that begin at multiples of 16 rows: rows are moved apart for it, and back.
namespace titan::nn {

// Whether it takes matrices with these sizes: all must be multiples of 16.
bool fits_scaled_grouped_mm(int64_t in, int64_t out);

// a [n, k], whose rows become e4m3 with a power of two each, b [groups, m, k] with scales [groups, m, 1]: each group's
// a b^T, [n, m] in a's type, zeros for rows of no group.
at::Tensor scaled_grouped_mm(const at::Tensor& a, const Operand& b, const RowGroups& groups);

// dy [n, out] and x [n, in], of which each group's columns become e4m3 with a power of two each: each group's dy^T x,
// [groups, out, in] in x's type.
at::Tensor scaled_grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups);

}  // namespace titan::nn
