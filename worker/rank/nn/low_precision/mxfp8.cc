#include <c10/util/Exception.h>

#include "worker/rank/nn/low_precision/makers.h"
#include "worker/rank/nn/low_precision/mx.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/nn/products.h"

namespace titan::nn {
namespace {

// Each product quantises its operands anew, in blocks along what it sums over, so layers keep numbers. Emulated,
// operands are rounded to what their blocks hold, which bf16 holds exactly, and multiplied as they are. Experts are
// always emulated: an expert's rows are whole blocks of its own, the last one shorter.
class Mxfp8 final : public ProductRecipe {
 public:
  explicit Mxfp8(const LowPrecisionOptions& options) : rounding_(options.rounding), emulate_(options.emulate) {
    TORCH_CHECK(!options.input_over_ranks && !options.gradient_over_ranks && !options.weight_over_ranks,
                "mxfp8: blocks are of one rank's numbers; only tensorwise scales are shared by ranks");
  }

  Operand of_input(const at::Tensor& x) const override { return {x, {}, x.scalar_type()}; }
  Operand of_weight(const at::Tensor& weight) const override { return {weight, {}, weight.scalar_type()}; }
  Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}, dy.scalar_type()}; }

  at::Tensor times_transposed(const Operand& x, const Operand& weight) const override {
    const at::Tensor &rows = numbers(x), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::times_transposed(rounded(rows, -1), rounded(matrix, -1));
    return multiplied(rows_of(rows), matrix).view(with_last(rows, matrix.size(0)));
  }

  void add_times(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    const at::Tensor &rows = numbers(dy), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::add_times(sum, rounded(rows, -1), rounded(matrix, -2));
    const at::Tensor product = multiplied(rows_of(rows), matrix.t()).view(with_last(rows, matrix.size(1)));
    sum = sum.defined() ? sum.add_(product) : product;
  }

  at::Tensor weight_gradient(const Operand& dy, const Operand& x) const override {
    const at::Tensor left = rows_of(numbers(dy)), right = rows_of(numbers(x));
    if (!by_device(right)) return nn::weight_gradient(rounded(left, 0), rounded(right, 0));
    return multiplied(left.t(), right.t());
  }

  at::Tensor grouped_times_transposed(const Operand& x, const Operand& weights,
                                      const RowGroups& groups) const override {
    return nn::grouped_times_transposed(rounded(numbers(x), -1), rounded(numbers(weights), -1), groups);
  }
  at::Tensor grouped_times(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    return nn::grouped_times(rounded(numbers(dy), -1), rounded(numbers(weights), -2), groups);
  }
  at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const override {
    return nn::grouped_weight_gradient(rounded_groups(numbers(dy), groups), rounded_groups(numbers(x), groups), groups);
  }

 private:
  static const at::Tensor& numbers(const Operand& operand) {
    TORCH_CHECK(!operand.quantised(), "mxfp8: blocks follow each product, so its operands come as numbers");
    return operand.values;
  }

  bool by_device(const at::Tensor& x) const {
    return !emulate_ && has_low_precision_products(LowPrecision::kMxfp8, x.device());
  }

  at::Tensor rounded(const at::Tensor& x, int64_t dim) const { return mx_rounded(x, dim, rounding_); }

  // Each group's rows in blocks of their own. The host must know them.
  at::Tensor rounded_groups(const at::Tensor& x, const RowGroups& groups) const {
    at::Tensor result = at::empty_like(x);
    for_each_group(rows_on_host(groups), [&](int64_t /*group*/, int64_t first, int64_t count) {
      if (count > 0) result.narrow(0, first, count).copy_(rounded(x.narrow(0, first, count), 0));
    });
    clear_rows_of_no_group(result, groups);
    return result;
  }

  // a [m, k] b [n, k]^T by the device.
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

std::unique_ptr<ProductRecipe> make_mxfp8(const LowPrecisionOptions& options) {
  return std::make_unique<Mxfp8>(options);
}

}  // namespace titan::nn
