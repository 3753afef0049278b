#pragma once

// Eight-bit floats with dynamic scaling, computed as in torchao's float8 training: scale = largest value of the type /
// greatest magnitude of the numbers that share it. The OCP formats are e4m3fn (at most 448, no infinity) and e5m2 (at
// most 57,344). A NaN or an infinity makes all numbers of its scale NaN. A scale belongs to a whole tensor, to a row or
// a column, or to a column of one expert's rows.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/matmul_recipe.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// Returns the largest finite value of e4m3fn or e5m2.
double largest_of(at::ScalarType float8);

// Returns the greatest magnitude of x [...], fp32 []. 0 if x is empty.
at::Tensor amax_of(const at::Tensor& x);
// The same along one dimension of x [..., n, k], which becomes 1: of each row with dim = -1, [..., n, 1], of each
// column with dim = -2, [..., 1, k].
at::Tensor amax_along(const at::Tensor& x, int64_t dim);

// Returns the scales of numbers with this amax, fp32 [...] for fp32 [...]. An amax below 1e-12 is taken as 1e-12, so
// that zeros have a scale. `power_of_two` rounds down to a power of two, so that scaling is exact.
at::Tensor scale_from(const at::Tensor& amax, at::ScalarType float8, bool power_of_two);

// Casts x [...] * scale (fp32, broadcast to x), computed at least in fp32, to eight bits [...]. Numbers beyond the
// type's largest value become that value.
at::Tensor to_float8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8);

// Quantises x [...] with the scales of amax, fp32 in a shape that broadcasts to x's. The operand's scales, fp32 of that
// shape, multiply its values to give numbers again.
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);

// Quantise x [..., n, k] to e4m3 with a power of two. Rows: one per row, values [..., n, k], scales [..., n, 1].
// Columns: one per column, transposed as a device multiplies them, values [..., k, n], scales [..., k, 1].
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// Returns the values [...] in `type`, exactly, without the scales.
at::Tensor values_in(const Operand& operand, at::ScalarType type);

// Returns values * scales in `type`, [...]. Exact in bf16 if the scales are powers of two and the exponents fit.
at::Tensor dequantised(const Operand& operand, at::ScalarType type);

// Rounds x [..., n, k] to the numbers that e4m3 with a power of two per row (dim = -1) or column (-2) can hold, in x's
// type and shape.
at::Tensor rounded_along(const at::Tensor& x, int64_t dim);

// Returns int64 [n], on `like`'s device: the group of each of n rows, or the number of groups for a row of no group.
at::Tensor group_of_rows(const RowGroups& groups, int64_t n, const at::Tensor& like);

// Quantises x [n, k] to e4m3 with a power of two per column of each group, because the gradient of an expert's weight
// sums over its rows: values [n, k], scales [groups, k]. Nothing waits for the device. Rows of no group get arbitrary
// values.
Operand quantised_group_columns(const at::Tensor& x, const RowGroups& groups);

// Rounds x [n, k] in the same way, in x's type and shape. Rows of no group become zeros.
at::Tensor rounded_group_columns(const at::Tensor& x, const RowGroups& groups);

inline constexpr int64_t kGroupMultiple = 16;

// Positions of rows that are moved apart so that each group begins at a multiple of 16 rows.
struct PaddedGroups {
  at::Tensor places;  // int64 or int32 [n]: position of each row. Rows of no group come last.
  at::Tensor ends;    // int32 [groups]: end of each group, padding rows included.
  int64_t rows = 0;   // Number of positions, enough for any sizes of the groups. A multiple of 16.
  // int32 [rows] and [rows / 16], read by a device's kernels (worker/rank/kernels/float8_scales.h). Undefined:
  // LibTorch's operations move rows.
  at::Tensor source, group;
};
// Computes the positions for rows [n, k].
PaddedGroups pad_groups(const RowGroups& groups, const at::Tensor& rows);

// Moves x [n, k] apart and quantises each row with a power of two: [to.rows, k] with scales [to.rows]. Zeros fill the
// gaps.
Operand quantise_padded_rows(const at::Tensor& x, const PaddedGroups& to);

// Moves x [n, k] apart, quantises each group's columns with powers of two, and transposes: [k, to.rows] with scales
// [groups, k].
Operand quantise_padded_columns(const at::Tensor& x, const PaddedGroups& to, const RowGroups& groups);

}  // namespace titan::nn
