#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

#include "worker/rank/nn/low_precision/mxfp8.h"

// Eight-bit floats written out in fp64, from their definitions and without LibTorch's types. All functions keep the
// shape.
namespace titan::testing {

// A format: bits of its mantissa, exponent of its least normal number, and largest number.
struct Format {
  int mantissa;
  int least_exponent;
  double max_value;
};
inline constexpr Format kE4m3{3, -6, 448}, kE5m2{2, -14, 57344};

// Returns floor(log2 |x|) of each number except zero.
inline at::Tensor exponent_of(const at::Tensor& x) { return std::get<1>(at::frexp(x)).to(at::kDouble) - 1; }

// Returns the nearest number of the format, ties to even, saturated.
inline at::Tensor nearest(const at::Tensor& x, const Format& format) {
  const at::Tensor step = at::exp2(exponent_of(x).clamp_min(format.least_exponent) - format.mantissa);
  return at::round(x / step).mul(step).clamp(-format.max_value, format.max_value);
}

// Returns the quantized values of x, a bf16, fp32 or fp64 tensor. Each element of `amax` (broadcast over x) gives one
// scale.
inline at::Tensor plain_float8(const at::Tensor& x, const at::Tensor& amax, const Format& format, bool power_of_two) {
  at::Tensor scale = (format.max_value / amax.to(at::kDouble).clamp_min(1e-12)).to(at::kFloat);
  if (power_of_two) scale = at::exp2(exponent_of(scale.to(at::kDouble))).to(at::kFloat);
  const at::Tensor scaled = x.scalar_type() == at::kDouble ? x * scale.to(at::kDouble) : x.to(at::kFloat) * scale;
  return nearest(scaled.to(at::kDouble), format) * scale.reciprocal().to(at::kDouble);
}

inline at::Tensor plain_tensorwise(const at::Tensor& x, const Format& format, bool power_of_two = false) {
  return plain_float8(x, x.abs().max(), format, power_of_two);
}

inline at::Tensor plain_along(const at::Tensor& x, int64_t dim) {
  return plain_float8(x, x.abs().amax(dim, /*keepdim=*/true), kE4m3, /*power_of_two=*/true);
}

// Returns the unbiased exponent of a block's scale.
inline at::Tensor plain_mx_exponent(const at::Tensor& amax, nn::MxRounding rounding) {
  const at::Tensor exact = amax.to(at::kDouble);
  switch (rounding) {
    case nn::MxRounding::kFloor:
      return exponent_of(exact) - 8;
    case nn::MxRounding::kCeil:
      return at::log2(exact).ceil() - 8;
    case nn::MxRounding::kRceil:
      return at::log2((amax.to(at::kFloat) / 448).to(at::kDouble)).ceil();
    case nn::MxRounding::kEven: {
      // Rounds to four significant bits, halves away from zero.
      const at::Tensor step = at::exp2(exponent_of(exact) - 3);
      return exponent_of(at::floor(exact / step + 0.5) * step) - 8;
    }
  }
  return {};
}

// Quantizes x in blocks of 32 along `dim`, one block after the other.
inline at::Tensor plain_mx(const at::Tensor& x, int64_t dim, nn::MxRounding rounding) {
  at::Tensor result = at::zeros(x.sizes(), at::kDouble);
  for (int64_t first = 0; first < x.size(dim); first += 32) {
    const int64_t size = std::min<int64_t>(32, x.size(dim) - first);
    const at::Tensor block = x.narrow(dim, first, size);
    const at::Tensor scale = at::exp2(plain_mx_exponent(block.abs().amax(dim, /*keepdim=*/true), rounding));
    result.narrow(dim, first, size).copy_(nearest(block.to(at::kDouble) / scale, kE4m3) * scale);
  }
  return result;
}

}  // namespace titan::testing
