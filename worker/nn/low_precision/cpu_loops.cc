#include "worker/nn/low_precision/cpu_loops.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>

#include "worker/nn/own_kernels.h"

namespace titan::nn {
namespace {

constexpr int64_t kGrain = 1 << 14;  // Numbers that are worth a thread.

constexpr uint32_t kSign = 0x80000000U;
constexpr int kFloatMantissa = 23, kFloatBias = 127;

float of_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
// Of numbers that bf16 holds.
uint16_t to_bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

// An eight-bit format, and fp32 numbers rounded to it by their bits.
template <int kMantissa, int kBias, int kMost>
struct Format {
  static constexpr int kDropped = kFloatMantissa - kMantissa;
  static constexpr int kLeastExponent = 1 - kBias;
  static constexpr uint32_t kLeastNormal = static_cast<uint32_t>(kLeastExponent + kFloatBias) << kFloatMantissa;
  // Adding it leaves the bits that numbers below the least normal one keep: their step is its last bit.
  static constexpr float kSubnormals = static_cast<float>(1 << (kFloatMantissa - kMantissa + kLeastExponent));

  // The nearest magnitude, ties to even, saturated; a NaN stays one.
  static float nearest(float magnitude) {
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    const uint32_t half = (1U << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1);
    const float normal = std::bit_cast<float>((bits + half) & ~((1U << kDropped) - 1));
    const float subnormal = (magnitude + kSubnormals) - kSubnormals;
    float result = bits < kLeastNormal ? subnormal : normal;
    result = result > static_cast<float>(kMost) ? static_cast<float>(kMost) : result;
    return magnitude == magnitude ? result : magnitude;
  }

  static uint8_t encode(float x) {
    const uint32_t sign = std::bit_cast<uint32_t>(x) & kSign;
    const float magnitude = nearest(std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~kSign));
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    constexpr uint32_t kOffset = static_cast<uint32_t>(kFloatBias - kBias) << kMantissa;
    // The sum's last bits are the subnormal's.
    const uint32_t subnormal = std::bit_cast<uint32_t>(magnitude + kSubnormals) & ((1U << kMantissa) - 1);
    uint32_t code = bits < kLeastNormal ? subnormal : (bits >> kDropped) - kOffset;
    code = magnitude == magnitude ? code : 0x7f;
    return static_cast<uint8_t>(code | sign >> 24);
  }
};
using E4m3 = Format<3, 7, 448>;
using E5m2 = Format<2, 15, 57344>;

uint16_t rounded(uint16_t x, float scale, float inverse) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  const float magnitude = E4m3::nearest(std::bit_cast<float>(bits & ~kSign) * scale) * inverse;
  return static_cast<uint16_t>(to_bf16(magnitude) | (x & 0x8000));
}

// A tensor as [outer, size, inner], cut in blocks along `size`.
struct Blocks {
  Blocks(const at::Tensor& x, int64_t dim, int64_t length) : block(std::max<int64_t>(length, 1)) {
    const int64_t at = at::maybe_wrap_dim(dim, x.dim());
    for (int64_t i = 0; i < x.dim(); ++i) (i < at ? outer : i == at ? size : inner) *= x.size(i);
    count = (size + block - 1) / block;
    shape = x.sizes().vec();
    shape[at] = count;
  }

  int64_t outer = 1, size = 1, inner = 1, block = 1, count = 1;
  std::vector<int64_t> shape;  // With one number a block.

  // visit(first number, length, place of the block) for runs of numbers side by side that share a scale, or, where
  // `inner` is more than 1, that have the scales from that place on.
  template <typename Visit>
  void each_run(const Visit& visit) const {
    if (inner == 1) {
      at::parallel_for(0, outer * count, std::max<int64_t>(kGrain / block, 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i % count * block;
          visit(i / count * size + first, std::min(block, size - first), i);
        }
      });
      return;
    }
    const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(outer * size, 1), 64);
    at::parallel_for(0, inner, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < outer * size; ++row) {
        const int64_t place = row / size * count + row % size / block;
        visit(row * inner + begin, end - begin, place * inner + begin);
      }
    });
  }
};

const uint16_t* bits_of(const at::Tensor& x) { return reinterpret_cast<const uint16_t*>(x.const_data_ptr()); }
uint16_t* mutable_bits_of(at::Tensor& x) { return reinterpret_cast<uint16_t*>(x.mutable_data_ptr()); }

template <typename F8>
void encode_all(const uint16_t* x, int64_t count, float scale, uint8_t* codes) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) codes[i] = F8::encode(of_bf16(x[i]) * scale);
  });
}

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
  const Blocks blocks(x, dim, block);
  // Magnitudes are ordered as their bits are, NaNs above all.
  at::Tensor most = at::zeros(blocks.shape, x.options());
  const uint16_t* numbers = bits_of(x);
  uint16_t* result = mutable_bits_of(most);
  blocks.each_run([&](int64_t first, int64_t length, int64_t place) {
    const uint16_t* run = numbers + first;
    if (blocks.inner > 1) {
      uint16_t* at = result + place;
      for (int64_t i = 0; i < length; ++i) at[i] = std::max<uint16_t>(at[i], run[i] & 0x7fff);
      return;
    }
    uint16_t greatest = 0;
    for (int64_t i = 0; i < length; ++i) greatest = std::max<uint16_t>(greatest, run[i] & 0x7fff);
    result[place] = greatest;
  });
  return most.to(at::kFloat);
}

at::Tensor rounded_by_blocks(const at::Tensor& x, int64_t dim, int64_t block, const at::Tensor& scale,
                             const at::Tensor& inverse) {
  const Blocks blocks(x, dim, block);
  const at::Tensor scales = scale.contiguous(), inverses = inverse.contiguous();
  TORCH_INTERNAL_ASSERT(scales.sizes() == blocks.shape && inverses.sizes() == blocks.shape);
  at::Tensor result = uninitialized(x.sizes(), x.options());
  const uint16_t* numbers = bits_of(x);
  const float *up = scales.const_data_ptr<float>(), *down = inverses.const_data_ptr<float>();
  uint16_t* target = mutable_bits_of(result);
  blocks.each_run([&](int64_t first, int64_t length, int64_t place) {
    const uint16_t* run = numbers + first;
    uint16_t* to = target + first;
    if (blocks.inner > 1) {
      for (int64_t i = 0; i < length; ++i) to[i] = rounded(run[i], up[place + i], down[place + i]);
    } else {
      for (int64_t i = 0; i < length; ++i) to[i] = rounded(run[i], up[place], down[place]);
    }
  });
  return result;
}

at::Tensor encoded(const at::Tensor& x, const at::Tensor& scale, at::ScalarType float8) {
  at::Tensor values = uninitialized(x.sizes(), x.options().dtype(float8));
  auto* codes = static_cast<uint8_t*>(values.mutable_data_ptr());
  const float factor = *scale.const_data_ptr<float>();
  if (float8 == at::kFloat8_e4m3fn) {
    encode_all<E4m3>(bits_of(x), x.numel(), factor, codes);
  } else {
    encode_all<E5m2>(bits_of(x), x.numel(), factor, codes);
  }
  return values;
}

at::Tensor decoded(const at::Tensor& values) {
  static const std::array<uint16_t, 256> e4m3 = table_of(at::kFloat8_e4m3fn), e5m2 = table_of(at::kFloat8_e5m2);
  const std::array<uint16_t, 256>& table = values.scalar_type() == at::kFloat8_e4m3fn ? e4m3 : e5m2;
  at::Tensor numbers = uninitialized(values.sizes(), values.options().dtype(at::kBFloat16));
  const auto* codes = static_cast<const uint8_t*>(values.const_data_ptr());
  uint16_t* target = mutable_bits_of(numbers);
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) target[i] = table[codes[i]];
  });
  return numbers;
}

}  // namespace titan::nn
