#pragma once

#include <ATen/ATen.h>

#include "worker/nn/product_recipe.h"
#include "worker/nn/row_groups.h"

// Products of experts' rows in eight bits by the device (LibTorch's _scaled_grouped_mm), with a scale a row of each
// operand. Its kernel wants groups that begin at multiples of 16 rows: rows are moved apart for it, and back.
namespace titan::nn {

// Whether it takes matrices with these sizes: all must be multiples of 16.
bool fits_scaled_grouped_mm(int64_t in, int64_t out);

// a [n, k] with scales [n, 1], b [groups, m, k] with scales [groups, m, 1]: each group's a b^T, [n, m] in `type`, zeros
// for rows of no group.
at::Tensor scaled_grouped_mm(const Operand& a, const Operand& b, const RowGroups& groups, at::ScalarType type);

// dy [n, out] and x [n, in] with scales [groups, out] and [groups, in]: each group's dy^T x, [groups, out, in].
at::Tensor scaled_grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups,
                                          at::ScalarType type);

// Where rows lie when each group begins at a multiple of 16.
struct GroupsApart {
  at::Tensor places;  // int64 [n]; rows of no group come last.
  at::Tensor ends;    // int32 [groups]: with the rows that fill it up.
  int64_t rows = 0;   // Enough for any sizes of the groups.
};
GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows);

}  // namespace titan::nn
