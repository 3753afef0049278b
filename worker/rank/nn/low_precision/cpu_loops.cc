#include "worker/rank/nn/low_precision/cpu_loops.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "worker/rank/kernels/cpu/eight_bits.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

// A tensor cut in blocks of `length` along `dim`.
kernels::Blocks blocks_of(const at::Tensor& x, int64_t dim, int64_t length) {
  const int64_t at = at::maybe_wrap_dim(dim, x.dim());
  kernels::Blocks blocks{.block = std::max<int64_t>(length, 1)};
  for (int64_t i = 0; i < x.dim(); ++i) {
    (i < at ? blocks.outer : i == at ? blocks.size : blocks.inner) *= x.size(i);
  }
  return blocks;
}

// With one number a block.
std::vector<int64_t> shape_of(const kernels::Blocks& blocks, const at::Tensor& x, int64_t dim) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[at::maybe_wrap_dim(dim, x.dim())] = blocks.count();
  return shape;
}

const uint16_t* bits_of(const at::Tensor& x) { return reinterpret_cast<const uint16_t*>(x.const_data_ptr()); }
uint16_t* mutable_bits_of(at::Tensor& x) { return reinterpret_cast<uint16_t*>(x.mutable_data_ptr()); }

// What LibTorch makes of each code.
std::array<uint16_t, 256> table_of(at::ScalarType float8) {
  const at::Tensor codes = at::arange(256, at::kByte).view(float8).to(at::kBFloat16);
  std::array<uint16_t, 256> table;
  std::copy_n(bits_of(codes), table.size(), table.begin());
  return table;
}

}  // namespace

bool cpu_loops_take(const at::Tensor& x) { return own_kernels_take(x) && x.is_contiguous(); }

bool table_takes(const at::Tensor& values) {
  return values.is_cpu() && values.is_contiguous() && kernels::chosen_level().has_value();
}

at::Tensor amax_of_blocks(const at::Tensor& x, int64_t dim, int64_t block) {
  const kernels::Blocks blocks = blocks_of(x, dim, block);
  at::Tensor most = at::zeros(shape_of(blocks, x, dim), x.options());
  kernels::amax_of_blocks(blocks, bits_of(x), mutable_bits_of(most), at::get_num_threads());
  return most.to(at::kFloat);
}

at::Tensor rounded_by_blocks(const at::Tensor& x, int64_t dim, int64_t block, const at::Tensor& scale,
                             const at::Tensor& inverse) {
  const kernels::Blocks blocks = blocks_of(x, dim, block);
  const std::vector<int64_t> shape = shape_of(blocks, x, dim);
  const at::Tensor scales = scale.contiguous(), inverses = inverse.contiguous();
  TORCH_INTERNAL_ASSERT(scales.sizes() == shape && inverses.sizes() == shape);
  at::Tensor result = uninitialized(x.sizes(), x.options());
  kernels::round_by_blocks(blocks, bits_of(x), scales.const_data_ptr<float>(), inverses.const_data_ptr<float>(),
                           mutable_bits_of(result), at::get_num_threads());
  return result;
}

at::Tensor encoded(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8) {
  at::Tensor values = uninitialized(x.sizes(), x.options().dtype(float8));
  const auto format = float8 == at::kFloat8_e4m3fn ? kernels::EightBits::kE4m3 : kernels::EightBits::kE5m2;
  kernels::encode(format, bits_of(x), x.numel(), *scale.const_data_ptr<float>(),
                  static_cast<uint8_t*>(values.mutable_data_ptr()), at::get_num_threads());
  return values;
}

at::Tensor decoded(const at::Tensor& values) {
  static const std::array<uint16_t, 256> e4m3 = table_of(at::kFloat8_e4m3fn), e5m2 = table_of(at::kFloat8_e5m2);
  at::Tensor numbers = uninitialized(values.sizes(), values.options().dtype(at::kBFloat16));
  kernels::decode(values.scalar_type() == at::kFloat8_e4m3fn ? e4m3 : e5m2,
                  static_cast<const uint8_t*>(values.const_data_ptr()), values.numel(), mutable_bits_of(numbers),
                  at::get_num_threads());
  return numbers;
}

}  // namespace titan::nn
