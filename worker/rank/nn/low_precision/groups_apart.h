#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/product_recipe.h"
#include "worker/rank/nn/row_groups.h"

// Rows of groups moved apart, so that each group begins at a multiple of 16 rows, as eight-bit numbers.
namespace titan::nn {

inline constexpr int64_t kGroupMultiple = 16;

struct GroupsApart {
  at::Tensor places;  // int64 or int32 [n]: where rows lie; those of no group come last.
  at::Tensor ends;    // int32 [groups]: with the rows that fill it up.
  int64_t rows = 0;   // Enough for any sizes of the groups; a multiple of 16.
  // What a device's own kernels read (worker/rank/kernels/float8_scales.h); undefined: LibTorch's operations move rows.
  at::Tensor source, group;
};
GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows);

// x [n, k] apart, each row with a power of two: [to.rows, k] with scales [to.rows]. Between groups lie zeros.
Operand rows_apart(const at::Tensor& x, const GroupsApart& to);

// x [n, k] apart and turned, each group's columns with a power of two: [k, to.rows] with scales [groups, k].
Operand columns_apart(const at::Tensor& x, const GroupsApart& to, const RowGroups& groups);

}  // namespace titan::nn
