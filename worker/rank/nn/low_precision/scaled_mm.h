#pragma once

// Products of eight-bit matrices with scales by the device's own instructions (LibTorch's _scaled_mm and
// _scaled_grouped_mm), dense ones and those of experts' rows. Both operands lie with what is summed over in their last
// dimension.

#include <ATen/ATen.h>

#include "worker/rank/nn/product_recipe.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// (a * its scales) (b * its scales)^T of a [m, k] and b [n, k]: [m, n] in `type`. Scales are [], or one a row, [m, 1]
// and [n, 1]. k and n are filled up with zeros to multiples of 16. `fast`: sums may lose low bits on the way, as the
// tensor cores of SM89 and SM90 do unless told otherwise.
at::Tensor scaled_mm(const Operand& a, const Operand& b, bool fast, at::ScalarType type);

// The same of blocks of 32 with an exponent each (worker/rank/nn/low_precision/mxfp8.h), k filled up to whole blocks.
at::Tensor mx_scaled_mm(const Operand& a, const Operand& b, at::ScalarType type);

// Exponents [rows, blocks] e8m0 as the device reads them, flat: tiles of 128 rows by 4 blocks, in each of which the
// rows 0, 32, 64 and 96 lie side by side, then 1, 33, 65 and 97, and so on (cuBLAS, 1D block scaling). What tiles have
// beyond the edges is zero.
at::Tensor mx_tiles(const at::Tensor& exponents);

// Whether the grouped products take matrices with these sizes: all must be multiples of 16.
bool fits_scaled_grouped_mm(int64_t in, int64_t out);

// a [n, k], whose rows become e4m3 with a power of two each, b [groups, m, k] with scales [groups, m, 1]: each group's
// a b^T, [n, m] in a's type, zeros for rows of no group. LibTorch's kernel wants groups that begin at multiples of 16
// rows: rows are moved apart for it, and back.
at::Tensor scaled_grouped_mm(const at::Tensor& a, const Operand& b, const RowGroups& groups);

// dy [n, out] and x [n, in], of which each group's columns become e4m3 with a power of two each: each group's dy^T x,
// [groups, out, in] in x's type.
at::Tensor scaled_grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups);

}  // namespace titan::nn
