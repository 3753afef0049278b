#include <c10/util/Exception.h>

#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/group_columns.h"
#include "worker/rank/nn/low_precision/makers.h"
#include "worker/rank/nn/low_precision/scaled_grouped_mm.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/nn/products.h"

namespace titan::nn {
namespace {

// A matrix with one scale for each of its experts, or for all of it: [experts, 1, 1], [1, 1].
at::Tensor amax_of_matrices(const at::Tensor& weight) { return amax_along(amax_along(weight, -1), -2); }

// Each product quantises its operands anew, along what it sums over, so layers keep numbers. Emulated, operands are
// rounded to what eight bits hold, which bf16 holds exactly, and multiplied as they are: one rounding, of the result.
class Float8Rowwise final : public ProductRecipe {
 public:
  explicit Float8Rowwise(const LowPrecisionOptions& options)
      : recipe_(options.recipe),
        exact_weight_gradient_(options.recipe == LowPrecision::kFloat8RowwiseGwHp),
        emulate_(options.emulate) {
    TORCH_CHECK(!options.input_over_ranks && !options.gradient_over_ranks && !options.weight_over_ranks,
                "float8: rows' scales are of one rank's rows; only tensorwise scales are shared by ranks");
  }

  Operand of_input(const at::Tensor& x) const override { return {x, {}, x.scalar_type()}; }
  Operand of_weight(const at::Tensor& weight) const override { return {weight, {}, weight.scalar_type()}; }
  Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}, dy.scalar_type()}; }

  at::Tensor times_transposed(const Operand& x, const Operand& weight) const override {
    const at::Tensor &rows = numbers(x), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::times_transposed(rounded_along(rows, -1), rounded_along(matrix, -1));
    return scaled_mm(quantised_rows(rows_of(rows)), quantised_rows(matrix), /*fast=*/true, rows.scalar_type())
        .view(with_last(rows, matrix.size(0)));
  }

  void add_times(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    const at::Tensor &rows = numbers(dy), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::add_times(sum, rounded_along(rows, -1), rounded_for_input(matrix));
    const at::Tensor product =
        scaled_mm(quantised_rows(rows_of(rows)), for_input(matrix), /*fast=*/false, rows.scalar_type())
            .view(with_last(rows, matrix.size(1)));
    sum = sum.defined() ? sum.add_(product) : product;
  }

  at::Tensor weight_gradient(const Operand& dy, const Operand& x) const override {
    const at::Tensor left = rows_of(numbers(dy)), right = rows_of(numbers(x));
    if (exact_weight_gradient_) return nn::weight_gradient(left, right);
    if (!by_device(right)) return nn::weight_gradient(rounded_along(left, -2), rounded_along(right, -2));
    return scaled_mm(quantised_columns(left), quantised_columns(right), /*fast=*/false, right.scalar_type());
  }

  at::Tensor grouped_times_transposed(const Operand& x, const Operand& weights,
                                      const RowGroups& groups) const override {
    const at::Tensor &rows = numbers(x), &matrices = numbers(weights);
    if (grouped_by_device(matrices, matrices.size(1))) {
      return scaled_grouped_mm(rows, quantised_rows(matrices), groups);
    }
    return nn::grouped_times_transposed(rounded_along(rows, -1), rounded_along(matrices, -1), groups);
  }

  at::Tensor grouped_times(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    const at::Tensor &rows = numbers(dy), &matrices = numbers(weights);
    if (grouped_by_device(matrices, matrices.size(1))) {
      return scaled_grouped_mm(rows, for_input(matrices), groups);
    }
    return nn::grouped_times(rounded_along(rows, -1), rounded_for_input(matrices), groups);
  }

  at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const override {
    const at::Tensor &left = numbers(dy), &right = numbers(x);
    if (exact_weight_gradient_) return nn::grouped_weight_gradient(left, right, groups);
    if (grouped_by_device(right, left.size(1))) {
      return scaled_grouped_weight_gradient(left, right, groups);
    }
    return nn::grouped_weight_gradient(rounded_group_columns(left, groups), rounded_group_columns(right, groups),
                                       groups);
  }

 private:
  static const at::Tensor& numbers(const Operand& operand) {
    TORCH_CHECK(!operand.quantised(), "float8: scales of rows follow each product, so its operands come as numbers");
    return operand.values;
  }

  bool by_device(const at::Tensor& x) const { return !emulate_ && has_low_precision_products(recipe_, x.device()); }
  bool grouped_by_device(const at::Tensor& x, int64_t out) const {
    return !emulate_ && has_scaled_grouped_products(x.device()) && fits_scaled_grouped_mm(x.size(-1), out);
  }

  // A weight as the input's gradient reads it.
  Operand for_input(const at::Tensor& weight) const {
    if (!exact_weight_gradient_) return quantised_columns(weight);
    const Operand whole = one_scale(weight);
    const at::Tensor values = whole.values.transpose(-2, -1);
    std::vector<int64_t> shape = values.sizes().vec();
    shape.back() = 1;
    return {values, whole.scales.expand(shape), whole.type};
  }
  at::Tensor rounded_for_input(const at::Tensor& weight) const {
    return exact_weight_gradient_ ? dequantised(one_scale(weight), weight.scalar_type()) : rounded_along(weight, -2);
  }
  static Operand one_scale(const at::Tensor& weight) {
    return quantised(weight, amax_of_matrices(weight), at::kFloat8_e4m3fn, /*power_of_two=*/true);
  }

  static std::vector<int64_t> with_last(const at::Tensor& x, int64_t size) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = size;
    return shape;
  }

  const LowPrecision recipe_;
  const bool exact_weight_gradient_;
  const bool emulate_;
};

}  // namespace

std::unique_ptr<ProductRecipe> make_float8_rowwise(const LowPrecisionOptions& options) {
  return std::make_unique<Float8Rowwise>(options);
}

}  // namespace titan::nn
