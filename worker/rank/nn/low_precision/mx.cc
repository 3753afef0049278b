#include "worker/rank/nn/low_precision/mx.h"

#include <c10/util/Exception.h>

#include "worker/rank/nn/low_precision/cpu_loops.h"
#include "worker/rank/nn/low_precision/float8.h"

namespace titan::nn {
namespace {

constexpr int kBias = 127, kNan = 255;
constexpr int kMantissaBits = 23;        // Of fp32.
constexpr int kElementMantissaBits = 3;  // Of e4m3,
constexpr int kElementMostExponent = 8;  // whose largest value is 448 = 1.75 * 2^8.

// floor(log2 amax) of normal numbers, by their bits.
at::Tensor exponent_of(const at::Tensor& bits) {
  return bits.bitwise_right_shift(kMantissaBits).bitwise_and_(0xff).sub_(kBias);
}

at::Tensor unbiased(const at::Tensor& amax, MxRounding rounding) {
  const at::Tensor bits = amax.contiguous().view(at::kInt);
  switch (rounding) {
    case MxRounding::kFloor:
      return exponent_of(bits).sub_(kElementMostExponent);
    case MxRounding::kCeil:
      return exponent_of(bits).add_(bits.bitwise_and((1 << kMantissaBits) - 1).gt(0)).sub_(kElementMostExponent);
    case MxRounding::kEven:
      return exponent_of(bits.add(1 << (kMantissaBits - kElementMantissaBits - 1))).sub_(kElementMostExponent);
    case MxRounding::kRceil:
      return amax.div(largest_of(at::kFloat8_e4m3fn)).log2_().ceil_().clamp_(-kBias, kBias).to(at::kInt);
  }
  TORCH_CHECK(false, "mx: no such rounding");
}

// 2^(exponent - 127), fp32, at least the least normal number: what a block is divided by.
at::Tensor divisor_of(const at::Tensor& exponents) {
  return exponents.to(at::kInt).clamp_min_(1).bitwise_left_shift_(kMantissaBits).view(at::kFloat);
}

at::Tensor as_scales(const at::Tensor& exponents) { return exponents.view(at::kFloat8_e8m0fnu); }

// Elements of x whose dimension `dim` is one block each.
at::Tensor elements_of(const at::Tensor& x, const at::Tensor& exponents) {
  return to_float8(x, divisor_of(exponents).reciprocal_(), at::kFloat8_e4m3fn);
}

at::Tensor rounded_blocks(const at::Tensor& x, int64_t dim, MxRounding rounding) {
  const at::Tensor exponents = mx_exponents(amax_along(x, dim), rounding);
  return dequantised({.values = elements_of(x, exponents), .scales = as_scales(exponents)}, x.scalar_type());
}

}  // namespace

at::Tensor mx_exponents(const at::Tensor& amax, MxRounding rounding) {
  const at::Tensor biased = unbiased(amax, rounding).clamp_(-kBias, kBias + 1).add_(kBias);
  return at::maximum(biased, amax.ne(amax).to(at::kInt).mul_(kNan)).to(at::kByte);
}

Operand to_mx(const at::Tensor& x, MxRounding rounding) {
  const int64_t missing = (kMxBlock - x.size(-1) % kMxBlock) % kMxBlock;
  const at::Tensor whole = missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
  const at::Tensor blocks = whole.unflatten(-1, {whole.size(-1) / kMxBlock, kMxBlock});
  const at::Tensor exponents = mx_exponents(amax_along(blocks, -1), rounding);
  return {.values = elements_of(blocks, exponents).flatten(-2),
          .scales = as_scales(exponents).squeeze(-1),
          .type = x.scalar_type()};
}

at::Tensor mx_rounded(const at::Tensor& x, int64_t dim, MxRounding rounding) {
  if (cpu_loops_take(x)) {
    const at::Tensor exponents = mx_exponents(amax_of_blocks(x, dim, kMxBlock), rounding);
    return rounded_by_blocks(x, dim, kMxBlock, divisor_of(exponents).reciprocal_(),
                             as_scales(exponents).to(at::kFloat));
  }
  const int64_t at = at::maybe_wrap_dim(dim, x.dim()), size = x.size(at), whole = size / kMxBlock * kMxBlock;
  if (size < kMxBlock) return rounded_blocks(x, at, rounding);
  const auto blocks = [&](const at::Tensor& t) { return t.narrow(at, 0, whole).unflatten(at, {-1, kMxBlock}); };
  const at::Tensor first = rounded_blocks(blocks(x), at + 1, rounding).flatten(at, at + 1);
  if (whole == size) return first;
  return at::cat({first, rounded_blocks(x.narrow(at, whole, size - whole), at, rounding)}, at);
}

}  // namespace titan::nn
