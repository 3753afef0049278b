#include <utility>

#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/nn/low_precision/makers.h"
#include "worker/rank/nn/low_precision/scaled_mm.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/nn/products.h"

namespace titan::nn {
namespace {

constexpr at::ScalarType kForward = at::kFloat8_e4m3fn, kBackward = at::kFloat8_e5m2;

Operand quantised_by_ranks(const at::Tensor& x, at::ScalarType float8, const AmaxOverRanks& over_ranks) {
  at::Tensor amax = amax_of(x);
  if (over_ranks) over_ranks(amax);
  return quantised(x, amax, float8, /*power_of_two=*/false);
}

// Emulated: the product of the values, which are exact in bf16, summed in at least fp32, and then the two scales.
at::Tensor times_scales(const at::Tensor& product, const Operand& a, const Operand& b) {
  const at::ScalarType type = product.scalar_type();
  return product.mul_(a.scales.to(type) * b.scales.to(type));
}

Operand as_rows(const Operand& x) { return {rows_of(x.values), x.scales, x.type}; }

Operand transposed(const Operand& x) { return {rows_of(x.values).t(), x.scales, x.type}; }

class Float8Tensorwise final : public ProductRecipe {
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

  at::Tensor times_transposed(const Operand& x, const Operand& weight) const override {
    if (by_device(x)) return scaled_mm(as_rows(x), weight, /*fast=*/true, x.type).view(with_last(x, weight, 0));
    const at::ScalarType sums = accumulate_type(x.type);
    const auto [a, b] = exact(x, weight, x.type);
    return times_scales(nn::times_transposed(a, b, sums), x, weight).to(x.type);
  }

  void add_times(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    at::Tensor product;
    if (by_device(dy)) {
      product = scaled_mm(as_rows(dy), transposed(weight), /*fast=*/false, dy.type).view(with_last(dy, weight, 1));
    } else {
      const auto [a, b] = exact(dy, weight, dy.type);
      product = times_scales(nn::times(a, b, accumulate_type(dy.type)), dy, weight);
    }
    sum = sum.defined() ? sum.add_(product) : product.to(dy.type);
  }

  at::Tensor weight_gradient(const Operand& dy, const Operand& x) const override {
    if (by_device(dy)) return scaled_mm(transposed(dy), transposed(x), /*fast=*/false, dy.type);
    const auto [a, b] = exact(dy, x, dy.type);
    return times_scales(nn::weight_gradient(a, b, accumulate_type(dy.type)), dy, x).to(dy.type);
  }

  // No device has products of experts with one scale an operand: torchtitan takes rows' scales for experts.
  at::Tensor grouped_times_transposed(const Operand& x, const Operand& weights,
                                      const RowGroups& groups) const override {
    const auto [a, b] = exact(x, weights, x.type);
    return times_scales(nn::grouped_times_transposed(a, b, groups, accumulate_type(x.type)), x, weights).to(x.type);
  }
  at::Tensor grouped_times(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    const auto [a, b] = exact(dy, weights, dy.type);
    return times_scales(nn::grouped_times(a, b, groups, accumulate_type(dy.type)), dy, weights).to(dy.type);
  }
  at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const override {
    const auto [a, b] = exact(dy, x, dy.type);
    return times_scales(nn::grouped_weight_gradient(a, b, groups, accumulate_type(dy.type)), dy, x).to(dy.type);
  }

 private:
  bool by_device(const Operand& x) const {
    return !options_.emulate && has_low_precision_products(options_.recipe, x.values.device());
  }

  static std::pair<at::Tensor, at::Tensor> exact(const Operand& a, const Operand& b, at::ScalarType type) {
    return {values_in(a, type), values_in(b, type)};
  }

  // x's shape with the weight's size `dim` in place of its last.
  static std::vector<int64_t> with_last(const Operand& x, const Operand& weight, int64_t dim) {
    std::vector<int64_t> shape = x.values.sizes().vec();
    shape.back() = weight.values.size(dim);
    return shape;
  }

  const LowPrecisionOptions options_;
};

}  // namespace

std::unique_ptr<ProductRecipe> make_float8_tensorwise(const LowPrecisionOptions& options) {
  return std::make_unique<Float8Tensorwise>(options);
}

}  // namespace titan::nn
