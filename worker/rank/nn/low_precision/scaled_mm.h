#pragma once

// Products of eight-bit matrices with scales by the device's own instructions (LibTorch's _scaled_mm and
// _scaled_grouped_mm), dense and for experts' rows. Both operands have the summed dimension last.

#include <ATen/ATen.h>

#include "worker/rank/nn/matmul_recipe.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// Returns (a * its scales) (b * its scales)^T of a [m, k] and b [n, k]: [m, n] in `type`. Scales are [], or one per
// row, [m, 1] and [n, 1]. k and n are padded with zeros to multiples of 16. `fast` lets sums lose low bits, as the
// tensor cores of SM89 and SM90 do by default.
at::Tensor scaled_mm(const Operand& a, const Operand& b, bool fast, at::ScalarType type);

// The same for a [m, k] and b [n, k] in blocks of 32 with one exponent each (worker/rank/nn/low_precision/mxfp8.h),
// with k padded to whole blocks.
at::Tensor mx_scaled_mm(const Operand& a, const Operand& b, at::ScalarType type);

// Returns exponents e8m0 [rows, blocks] as the device reads them, flat e8m0 [tiles * 512]. A tile is 128 rows by 4
// blocks. In it rows 0, 32, 64 and 96 are side by side, then 1, 33, 65 and 97, and so on (cuBLAS, 1D block scaling).
// Tiles are zero beyond the edges.
at::Tensor mx_tiles(const at::Tensor& exponents);

// Whether the grouped products accept matrices of these sizes: multiples of 16.
bool fits_scaled_grouped_mm(int64_t in, int64_t out);

// Returns each group's a b^T, [n, m] in a's type, with zeros for rows of no group. Each row of a [n, k] is quantised to
// e4m3 with a power of two. b is [groups, m, k] with scales [groups, m, 1]. LibTorch's kernel requires groups that
// begin at multiples of 16 rows, so rows are moved apart for it, and back.
at::Tensor scaled_grouped_mm(const at::Tensor& a, const Operand& b, const RowGroups& groups);

// Returns each group's dy^T x, [groups, out, in] in x's type. Each column of a group's rows of dy [n, out] and x [n,
// in] is quantised to e4m3 with a power of two.
at::Tensor scaled_grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups);

}  // namespace titan::nn
