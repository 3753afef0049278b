#include "worker/rank/nn/low_precision/mxfp8.h"

#include <c10/util/Exception.h>

#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/float8_kernels.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

constexpr int kBias = 127, kNan = 255;
constexpr int kMantissaBits = 23;        // Mantissa bits of fp32.
constexpr int kElementMantissaBits = 3;  // Mantissa bits of e4m3.
constexpr int kElementMostExponent = 8;  // Exponent of e4m3's largest value, 448 = 1.75 * 2^8.

// Computes floor(log2 amax) of normal numbers, from their bits.
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
  TORCH_CHECK(false, "mxfp8: unknown rounding mode");
}

// Returns 2^(exponent - 127), fp32, but at least the smallest normal number. Blocks are divided by it.
at::Tensor divisor_of(const at::Tensor& exponents) {
  return exponents.to(at::kInt).clamp_min_(1).bitwise_left_shift_(kMantissaBits).view(at::kFloat);
}

at::Tensor as_scales(const at::Tensor& exponents) { return exponents.view(at::kFloat8_e8m0fnu); }

// Returns the elements of x, scaled by the exponents, which broadcast to x.
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

namespace {

// Each product quantises its operands separately, in blocks along the summed dimension, so layers save numbers. In
// emulation, operands are rounded to the numbers that their blocks can hold, which bf16 represents exactly, and
// multiplied in their own type. Experts are always emulated: an expert's rows form separate blocks, the last one
// shorter.
class Mxfp8 final : public MatmulRecipe {
 public:
  explicit Mxfp8(const LowPrecisionOptions& options) : rounding_(options.rounding), emulate_(options.emulate) {
    TORCH_CHECK(!options.input_over_ranks && !options.gradient_over_ranks && !options.weight_over_ranks,
                "mxfp8: a block's exponent covers one rank's numbers; only tensorwise scales can be shared by ranks");
  }

  Operand of_input(const at::Tensor& x) const override { return {x, {}, x.scalar_type()}; }
  Operand of_weight(const at::Tensor& weight) const override { return {weight, {}, weight.scalar_type()}; }
  Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}, dy.scalar_type()}; }

  at::Tensor matmul_nt(const Operand& x, const Operand& weight) const override {
    const at::Tensor &rows = numbers(x), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::matmul_nt(rounded(rows, -1), rounded(matrix, -1));
    return multiplied(rows_of(rows), matrix).view(with_last(rows, matrix.size(0)));
  }

  void add_matmul_nn(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    const at::Tensor &rows = numbers(dy), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::add_matmul_nn(sum, rounded(rows, -1), rounded(matrix, -2));
    const at::Tensor product = multiplied(rows_of(rows), matrix.t()).view(with_last(rows, matrix.size(1)));
    sum = sum.defined() ? sum.add_(product) : product;
  }

  at::Tensor weight_gradient(const Operand& dy, const Operand& x) const override {
    const at::Tensor left = rows_of(numbers(dy)), right = rows_of(numbers(x));
    if (!by_device(right)) return nn::weight_gradient(rounded(left, 0), rounded(right, 0));
    return multiplied(left.t(), right.t());
  }

  at::Tensor grouped_matmul_nt(const Operand& x, const Operand& weights, const RowGroups& groups) const override {
    return nn::grouped_matmul_nt(rounded(numbers(x), -1), rounded(numbers(weights), -1), groups);
  }
  at::Tensor grouped_matmul_nn(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    return nn::grouped_matmul_nn(rounded(numbers(dy), -1), rounded(numbers(weights), -2), groups);
  }
  at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const override {
    return nn::grouped_weight_gradient(rounded_groups(numbers(dy), groups), rounded_groups(numbers(x), groups), groups);
  }

 private:
  static const at::Tensor& numbers(const Operand& operand) {
    TORCH_CHECK(
        !operand.quantised(),
        "mxfp8: operands must not be quantised in advance, because each product quantises them in separate blocks");
    return operand.values;
  }

  bool by_device(const at::Tensor& x) const {
    return !emulate_ && has_low_precision_matmul(LowPrecisionRecipe::kMxfp8, x.device());
  }

  at::Tensor rounded(const at::Tensor& x, int64_t dim) const { return mx_rounded(x, dim, rounding_); }

  // Rounds each group's rows in separate blocks. The host must know the rows.
  at::Tensor rounded_groups(const at::Tensor& x, const RowGroups& groups) const {
    at::Tensor result = at::empty_like(x);
    for_each_group(rows_on_host(groups), [&](int64_t /*group*/, int64_t first, int64_t count) {
      if (count > 0) result.narrow(0, first, count).copy_(rounded(x.narrow(0, first, count), 0));
    });
    clear_rows_of_no_group(result, groups);
    return result;
  }

  // Multiplies a [m, k] b [n, k]^T on the device.
  at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b) const {
    return mx_scaled_mm(to_mx(a.contiguous(), rounding_), to_mx(b.contiguous(), rounding_), a.scalar_type());
  }

  static std::vector<int64_t> with_last(const at::Tensor& x, int64_t size) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = size;
    return shape;
  }

  const MxRounding rounding_;
  const bool emulate_;
};

}  // namespace

std::unique_ptr<MatmulRecipe> make_mxfp8(const LowPrecisionOptions& options) {
  return std::make_unique<Mxfp8>(options);
}

}  // namespace titan::nn
