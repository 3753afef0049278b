#pragma once

// Titan's own kernels for numbers of eight bits, taken where they are chosen (worker/rank/nn/own_kernels.h): one or two
// passes over bf16 numbers instead of LibTorch's seven, with the same bits. On a CPU they emulate; nn::on_device
// computes on a device what float8.h declares.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/low_precision/float8.h"

namespace titan::nn {

// bf16 on a CPU with neighbours side by side, own kernels chosen.
bool cpu_loops_take(const at::Tensor& x);

// The greatest magnitude of each `block` numbers along `dim`, the last block shorter: fp32, x's shape with the number
// of blocks in `dim`. NaN if there is one.
at::Tensor amax_of_blocks(const at::Tensor& x, int64_t dim, int64_t block);

// x * scale as e4m3, saturated, times inverse, in bf16: scales [as amax_of_blocks() has them] are powers of two.
at::Tensor rounded_by_blocks(const at::Tensor& x, int64_t dim, int64_t block, const at::Tensor& scale,
                             const at::Tensor& inverse);

// x * scale as e4m3fn or e5m2, saturated; scale [].
at::Tensor encoded(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8);

// Eight bits' values in bf16, by a table; where they lie so.
bool table_takes(const at::Tensor& values);
at::Tensor decoded(const at::Tensor& values);

}  // namespace titan::nn

namespace titan::nn::on_device {

// As the functions of these names in float8.h. Undefined (an operand without scales) where the device has no such
// kernels, or where they do not take x: it lies in memory without gaps, and its rows are multiples of eight numbers (of
// sixteen, and so is their count, where a matrix is transposed).
at::Tensor amax_of(const at::Tensor& x);
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// The same of groups whose ends the device knows.
GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows, int64_t room);
Operand rows_apart(const at::Tensor& x, const GroupsApart& to);
Operand columns_apart(const at::Tensor& x, const GroupsApart& to, int64_t groups);

// A matrix of eight-bit numbers that lies by columns, in memory row by row.
at::Tensor by_rows(const at::Tensor& values);

}  // namespace titan::nn::on_device
