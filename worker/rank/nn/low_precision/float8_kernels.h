#pragma once

// Titan's own kernels on CPUs and devices quantise and decode eight-bit numbers here, with the same bits as LibTorch's
// operations in fewer passes over memory.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/low_precision/float8.h"

namespace titan::nn {

// What emulation does to bf16 numbers on a CPU, in one pass each instead of LibTorch's seven, with the same bits. They
// are taken where Titan's own kernels are (worker/rank/nn/own_kernels.h).

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

// What worker/rank/nn/low_precision/float8.h computes, by Titan's own kernels of a device, with the same bits: one or
// two passes over bf16 numbers instead of LibTorch's seven. Undefined (an operand without scales) where there are no
// such kernels, or where they do not take x: it lies in memory without gaps, and its rows are multiples of eight
// numbers (of sixteen, and so is their count, where a matrix is turned).

at::Tensor amax_of(const at::Tensor& x);
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// Of groups whose ends the device knows (worker/rank/nn/low_precision/float8.h).
GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows, int64_t room);
Operand rows_apart(const at::Tensor& x, const GroupsApart& to);
Operand columns_apart(const at::Tensor& x, const GroupsApart& to, int64_t groups);

// A matrix of eight-bit numbers that lies by columns, in memory row by row.
at::Tensor by_rows(const at::Tensor& values);

}  // namespace titan::nn::on_device
