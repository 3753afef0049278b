#pragma once

// Numbers as eight-bit floats with a scale that follows them (dynamic scaling), computed as torchao's float8 training
// does: scale = largest value of the type / greatest magnitude of the numbers that share it. OCP's formats: e4m3fn (at
// most 448, no infinity) and e5m2 (at most 57,344). A NaN or an infinity makes all numbers of its scale NaN. Numbers
// that share a scale are a whole tensor, a row or a column, or the columns of a group of experts' rows.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/product_recipe.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

// The largest finite value of e4m3fn or e5m2.
double largest_of(at::ScalarType float8);

// The greatest magnitude of all of x, fp32 []; 0 where x is empty.
at::Tensor amax_of(const at::Tensor& x);
// The same along one dimension, which is kept with size 1: a row each with dim = -1, a column each with dim = -2.
at::Tensor amax_along(const at::Tensor& x, int64_t dim);

// What numbers are multiplied by: amax [...] fp32 to scales of the same shape, fp32. An amax below 1e-12 counts as
// that, so that zeros have a scale. With `power_of_two` rounded down to one: such scales round nothing.
at::Tensor scale_from(const at::Tensor& amax, at::ScalarType float8, bool power_of_two);

// x * scale, at least in fp32, as eight bits; what lies beyond the type's largest value becomes that.
at::Tensor to_float8(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8);

// x with the scales of its amax, of a shape that broadcasts to x's. The operand's scales are what values are multiplied
// by to be numbers again, fp32.
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);

// x [..., n, k] as e4m3 with a power of two for each row: scales [..., n, 1]. And for each column, as a device
// multiplies them: turned, [..., k, n] with scales [..., k, 1].
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// The values alone in `type`, exactly.
at::Tensor values_in(const Operand& operand, at::ScalarType type);

// values * scales in `type`; exact in bf16 where the scales are powers of two and the exponents fit.
at::Tensor dequantised(const Operand& operand, at::ScalarType type);

// x as e4m3 makes it with a power of two for each row (dim = -1) or column (-2), in x's type, exactly.
at::Tensor rounded_along(const at::Tensor& x, int64_t dim);

// int64 [n]: the group of each of n rows; as many as there are groups for a row of none. On `like`'s device.
at::Tensor group_of_rows(const RowGroups& groups, int64_t n, const at::Tensor& like);

// x [n, k] as e4m3 with a power of two for each column of each group, since the gradient of an expert's weight sums
// over its rows: values [n, k], scales [groups, k]. Nothing waits for the device. Rows of no group have any values.
Operand quantised_group_columns(const at::Tensor& x, const RowGroups& groups);

// x [n, k] as that makes it, in x's type. Rows of no group are zeros.
at::Tensor rounded_group_columns(const at::Tensor& x, const RowGroups& groups);

inline constexpr int64_t kGroupMultiple = 16;

// Where rows of groups lie when they are moved apart, so that each group begins at a multiple of 16 rows.
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
