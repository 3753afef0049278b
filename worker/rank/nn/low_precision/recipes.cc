#include "worker/rank/nn/low_precision/recipes.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <utility>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {
namespace {

std::atomic<int> cuda_capability{0};

}  // namespace

void set_cuda_capability(int capability) { cuda_capability = capability; }

bool has_scaled_grouped_products(at::Device device) {
  return (device.is_cuda() || device.is_meta()) && cuda_capability >= 90 && cuda_capability < 110;
}

bool has_exact_rowwise_products(at::Device device) { return device.is_cuda() && cuda_capability == 90; }

bool has_low_precision_matmul(LowPrecisionRecipe recipe, at::Device device) {
  // A dry run's tensors stand for the devices that it describes.
  if (!device.is_cuda() && !device.is_meta()) return false;
  switch (recipe) {
    case LowPrecisionRecipe::kFloat8Tensorwise:
    case LowPrecisionRecipe::kFloat8Rowwise:
    case LowPrecisionRecipe::kFloat8RowwiseGwHp:
      return cuda_capability >= 89;
    case LowPrecisionRecipe::kMxfp8:
      return cuda_capability >= 100;
  }
  return false;
}

std::unique_ptr<MatmulRecipe> make_low_precision_recipe(const LowPrecisionOptions& options) {
  switch (options.recipe) {
    case LowPrecisionRecipe::kFloat8Tensorwise:
      return make_float8_tensorwise(options);
    case LowPrecisionRecipe::kFloat8Rowwise:
    case LowPrecisionRecipe::kFloat8RowwiseGwHp:
      return make_float8_rowwise(options);
    case LowPrecisionRecipe::kMxfp8:
      return make_mxfp8(options);
  }
  TORCH_CHECK(false, "low precision: unknown recipe");
}

namespace {

constexpr at::ScalarType kForward = at::kFloat8_e4m3fn, kBackward = at::kFloat8_e5m2;

Operand quantised_by_ranks(const at::Tensor& x, at::ScalarType float8, const AmaxOverRanks& over_ranks) {
  at::Tensor amax = amax_of(x);
  if (over_ranks) over_ranks(amax);
  return quantised(x, amax, float8, /*power_of_two=*/false);
}

// Applies both scales to an emulated product of values, which are exact in bf16 and were summed in at least fp32.
at::Tensor times_scales(const at::Tensor& product, const Operand& a, const Operand& b) {
  const at::ScalarType type = product.scalar_type();
  return product.mul_(a.scales.to(type) * b.scales.to(type));
}

Operand as_rows(const Operand& x) { return {rows_of(x.values), x.scales, x.type}; }

Operand transposed(const Operand& x) { return {rows_of(x.values).t(), x.scales, x.type}; }

class Float8Tensorwise final : public MatmulRecipe {
 public:
  explicit Float8Tensorwise(LowPrecisionOptions options) : options_(std::move(options)) {}

  bool exchanges_with_ranks() const override {
    return options_.input_over_ranks || options_.gradient_over_ranks || options_.weight_over_ranks;
  }

  Operand of_input(const at::Tensor& x) const override {
    return quantised_by_ranks(x, kForward, options_.input_over_ranks);
  }
  Operand of_weight(const at::Tensor& weight) const override {
    return quantised_by_ranks(weight, kForward, options_.weight_over_ranks);
  }
  Operand of_gradient(const at::Tensor& dy) const override {
    return quantised_by_ranks(dy, kBackward, options_.gradient_over_ranks);
  }

  at::Tensor matmul_nt(const Operand& x, const Operand& weight) const override {
    if (by_device(x)) return scaled_mm(as_rows(x), weight, /*fast=*/true, x.type).view(with_last(x, weight, 0));
    const at::ScalarType sums = accumulate_type(x.type);
    const auto [a, b] = exact(x, weight, x.type);
    return times_scales(nn::matmul_nt(a, b, sums), x, weight).to(x.type);
  }

  void add_matmul_nn(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    at::Tensor product;
    if (by_device(dy)) {
      product = scaled_mm(as_rows(dy), transposed(weight), /*fast=*/false, dy.type).view(with_last(dy, weight, 1));
    } else {
      const auto [a, b] = exact(dy, weight, dy.type);
      product = times_scales(nn::matmul_nn(a, b, accumulate_type(dy.type)), dy, weight);
    }
    sum = sum.defined() ? sum.add_(product) : product.to(dy.type);
  }

  at::Tensor weight_gradient(const Operand& dy, const Operand& x) const override {
    if (by_device(dy)) return scaled_mm(transposed(dy), transposed(x), /*fast=*/false, dy.type);
    const auto [a, b] = exact(dy, x, dy.type);
    return times_scales(nn::weight_gradient(a, b, accumulate_type(dy.type)), dy, x).to(dy.type);
  }

  // Expert products are always emulated: no device has them with one scale per operand, and torchtitan uses scales of
  // rows for experts.
  at::Tensor grouped_matmul_nt(const Operand& x, const Operand& weights, const RowGroups& groups) const override {
    const auto [a, b] = exact(x, weights, x.type);
    return times_scales(nn::grouped_matmul_nt(a, b, groups, accumulate_type(x.type)), x, weights).to(x.type);
  }
  at::Tensor grouped_matmul_nn(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    const auto [a, b] = exact(dy, weights, dy.type);
    return times_scales(nn::grouped_matmul_nn(a, b, groups, accumulate_type(dy.type)), dy, weights).to(dy.type);
  }
  at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const override {
    const auto [a, b] = exact(dy, x, dy.type);
    return times_scales(nn::grouped_weight_gradient(a, b, groups, accumulate_type(dy.type)), dy, x).to(dy.type);
  }

 private:
  bool by_device(const Operand& x) const {
    return !options_.emulate && has_low_precision_matmul(options_.recipe, x.values.device());
  }

  static std::pair<at::Tensor, at::Tensor> exact(const Operand& a, const Operand& b, at::ScalarType type) {
    return {values_in(a, type), values_in(b, type)};
  }

  // Returns x's shape with the weight's size `dim` in place of its last.
  static std::vector<int64_t> with_last(const Operand& x, const Operand& weight, int64_t dim) {
    std::vector<int64_t> shape = x.values.sizes().vec();
    shape.back() = weight.values.size(dim);
    return shape;
  }

  const LowPrecisionOptions options_;
};

}  // namespace

std::unique_ptr<MatmulRecipe> make_float8_tensorwise(const LowPrecisionOptions& options) {
  return std::make_unique<Float8Tensorwise>(options);
}

namespace {

// Returns one amax per matrix: [experts, 1, 1], or [1, 1].
at::Tensor amax_of_matrices(const at::Tensor& weight) { return amax_along(amax_along(weight, -1), -2); }

// Each product quantises its operands separately, along the summed dimension, so layers save numbers. In emulation,
// operands are rounded to numbers that eight bits and their scale can hold, which bf16 represents exactly, and
// multiplied in their own type. Only the result is rounded.
class Float8Rowwise final : public MatmulRecipe {
 public:
  explicit Float8Rowwise(const LowPrecisionOptions& options)
      : recipe_(options.recipe),
        exact_weight_gradient_(options.recipe == LowPrecisionRecipe::kFloat8RowwiseGwHp),
        emulate_(options.emulate) {
    TORCH_CHECK(!options.input_over_ranks && !options.gradient_over_ranks && !options.weight_over_ranks,
                "float8: row scales cover one rank's rows; only tensorwise scales can be shared by ranks");
  }

  Operand of_input(const at::Tensor& x) const override { return {x, {}, x.scalar_type()}; }
  Operand of_weight(const at::Tensor& weight) const override { return {weight, {}, weight.scalar_type()}; }
  Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}, dy.scalar_type()}; }

  at::Tensor matmul_nt(const Operand& x, const Operand& weight) const override {
    const at::Tensor &rows = numbers(x), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::matmul_nt(rounded_along(rows, -1), rounded_along(matrix, -1));
    return scaled_mm(quantised_rows(rows_of(rows)), quantised_rows(matrix), /*fast=*/true, rows.scalar_type())
        .view(with_last(rows, matrix.size(0)));
  }

  void add_matmul_nn(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    const at::Tensor &rows = numbers(dy), &matrix = numbers(weight);
    if (!by_device(rows)) return nn::add_matmul_nn(sum, rounded_along(rows, -1), rounded_for_input(matrix));
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

  at::Tensor grouped_matmul_nt(const Operand& x, const Operand& weights, const RowGroups& groups) const override {
    const at::Tensor &rows = numbers(x), &matrices = numbers(weights);
    if (grouped_by_device(matrices, matrices.size(1))) {
      return scaled_grouped_mm(rows, quantised_rows(matrices), groups);
    }
    return nn::grouped_matmul_nt(rounded_along(rows, -1), rounded_along(matrices, -1), groups);
  }

  at::Tensor grouped_matmul_nn(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    const at::Tensor &rows = numbers(dy), &matrices = numbers(weights);
    if (grouped_by_device(matrices, matrices.size(1))) {
      return scaled_grouped_mm(rows, for_input(matrices), groups);
    }
    return nn::grouped_matmul_nn(rounded_along(rows, -1), rounded_for_input(matrices), groups);
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
    TORCH_CHECK(!operand.quantised(),
                "float8: rowwise operands must not be quantised in advance, because each product quantises them along "
                "its summed dimension");
    return operand.values;
  }

  bool by_device(const at::Tensor& x) const { return !emulate_ && has_low_precision_matmul(recipe_, x.device()); }
  bool grouped_by_device(const at::Tensor& x, int64_t out) const {
    return !emulate_ && has_scaled_grouped_products(x.device()) && fits_scaled_grouped_mm(x.size(-1), out);
  }

  // Returns a weight quantised for the matmul of the input's gradient.
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

  const LowPrecisionRecipe recipe_;
  const bool exact_weight_gradient_;
  const bool emulate_;
};

}  // namespace

std::unique_ptr<MatmulRecipe> make_float8_rowwise(const LowPrecisionOptions& options) {
  return std::make_unique<Float8Rowwise>(options);
}

}  // namespace titan::nn
