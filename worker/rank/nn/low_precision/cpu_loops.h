#pragma once

#include <ATen/ATen.h>

#include <cstdint>

// What emulation does to bf16 numbers on a CPU, in one pass each instead of LibTorch's seven, with the same bits. They
// are taken where Titan's own kernels are (worker/rank/nn/own_kernels.h).
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
