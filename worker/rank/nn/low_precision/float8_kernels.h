#pragma once

// Titan's own kernels for eight-bit numbers, used if chosen (worker/rank/nn/own_kernels.h). They make one or two passes
// over bf16 numbers instead of LibTorch's seven, with the same bits. The CPU's serve emulation. nn::on_device computes
// on a device what float8.h declares.

#include <ATen/ATen.h>

#include <cstdint>

#include "worker/rank/nn/low_precision/float8.h"

namespace titan::nn {

// Whether x [...] is contiguous bf16 on a CPU, and own kernels are chosen.
bool cpu_loops_take(const at::Tensor& x);

// Returns the greatest magnitude of every `block` numbers of x [...] along `dim`, where the last block may be shorter:
// fp32 of x's shape, but with the number of blocks in `dim`. NaN if a block contains one.
at::Tensor amax_of_blocks(const at::Tensor& x, int64_t dim, int64_t block);

// Returns x [...] * scale, rounded to e4m3 and saturated, times inverse, in bf16. scale and inverse have the shape of
// amax_of_blocks() and are powers of two.
at::Tensor rounded_by_blocks(const at::Tensor& x, int64_t dim, int64_t block, const at::Tensor& scale,
                             const at::Tensor& inverse);

// Returns x [...] * scale as e4m3fn or e5m2, saturated. scale is fp32 [].
at::Tensor encoded(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8);

// Decodes eight-bit values [...] to bf16 by a table. table_takes() is true if they are contiguous on a CPU and own
// kernels are chosen.
bool table_takes(const at::Tensor& values);
at::Tensor decoded(const at::Tensor& values);

}  // namespace titan::nn

namespace titan::nn::on_device {

// Contracts and shapes are those of the functions of these names in float8.h. They return an undefined tensor (an
// operand without scales) if the device has no such kernels, or if these do not accept x: it must be contiguous and
// aligned to 16 bytes, with rows of a multiple of eight numbers, and a multiple of sixteen rows if a matrix is
// transposed.
at::Tensor amax_of(const at::Tensor& x);
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// The same for rows and x [n, k] of groups with ends that the device knows. PaddedGroups::rows becomes `padded_size`.
PaddedGroups pad_groups(const RowGroups& groups, const at::Tensor& rows, int64_t padded_size);
Operand quantise_padded_rows(const at::Tensor& x, const PaddedGroups& to);
Operand quantise_padded_columns(const at::Tensor& x, const PaddedGroups& to, int64_t groups);

// Returns a column-major matrix [rows, columns] of eight-bit numbers in row-major order, or an undefined tensor.
at::Tensor by_rows(const at::Tensor& values);

}  // namespace titan::nn::on_device
