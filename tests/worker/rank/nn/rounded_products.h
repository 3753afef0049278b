#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/matmul_recipe.h"
#include "worker/rank/nn/row_groups.h"

namespace titan::testing {

// A second recipe, in fp64, for tests of the places where recipes plug in. Operands have eight bits, e4m3 forward and
// e5m2 for gradients, with one scale per matrix (for experts: one for all of them). Rows are [..., in] or [..., out],
// weights [out, in] or, for experts, [E, out, in].
class RoundedProducts final : public nn::MatmulRecipe {
 public:
  static nn::Operand quantised(const at::Tensor& x, at::ScalarType type) {
    const double largest = type == at::kFloat8_e4m3fn ? 448 : 57344;
    const at::Tensor scale = x.abs().max().clamp_min(1e-30) / largest;
    return {(x / scale).to(type), scale};
  }
  static at::Tensor exact(const nn::Operand& operand) { return operand.values.to(at::kDouble) * operand.scales; }

  nn::Operand of_input(const at::Tensor& x) const override { return quantised(x, at::kFloat8_e4m3fn); }
  nn::Operand of_weight(const at::Tensor& weight) const override { return quantised(weight, at::kFloat8_e4m3fn); }
  nn::Operand of_gradient(const at::Tensor& dy) const override { return quantised(dy, at::kFloat8_e5m2); }

  at::Tensor matmul_nt(const nn::Operand& x, const nn::Operand& weight) const override {
    return at::matmul(exact(x), exact(weight).t());
  }
  void add_matmul_nn(at::Tensor& sum, const nn::Operand& dy, const nn::Operand& weight) const override {
    const at::Tensor product = at::matmul(exact(dy), exact(weight));
    sum = sum.defined() ? sum + product : product;
  }
  at::Tensor weight_gradient(const nn::Operand& dy, const nn::Operand& x) const override {
    return at::matmul(exact(dy).flatten(0, -2).t(), exact(x).flatten(0, -2));
  }

  at::Tensor grouped_matmul_nt(const nn::Operand& x, const nn::Operand& weights,
                               const nn::RowGroups& groups) const override {
    return by_group(exact(x), exact(weights).transpose(1, 2), groups);
  }
  at::Tensor grouped_matmul_nn(const nn::Operand& dy, const nn::Operand& weights,
                               const nn::RowGroups& groups) const override {
    return by_group(exact(dy), exact(weights), groups);
  }
  at::Tensor grouped_weight_gradient(const nn::Operand& dy, const nn::Operand& x,
                                     const nn::RowGroups& groups) const override {
    const at::Tensor left = exact(dy), right = exact(x);
    at::Tensor gradient = at::zeros({groups.count(), left.size(1), right.size(1)}, left.options());
    nn::for_each_group(nn::rows_on_host(groups), [&](int64_t group, int64_t first, int64_t count) {
      gradient.select(0, group).copy_(at::matmul(left.narrow(0, first, count).t(), right.narrow(0, first, count)));
    });
    return gradient;
  }

 private:
  static at::Tensor by_group(const at::Tensor& x, const at::Tensor& matrices, const nn::RowGroups& groups) {
    at::Tensor y = at::zeros({x.size(0), matrices.size(2)}, x.options());
    nn::for_each_group(nn::rows_on_host(groups), [&](int64_t group, int64_t first, int64_t count) {
      y.narrow(0, first, count).copy_(at::matmul(x.narrow(0, first, count), matrices.select(0, group)));
    });
    return y;
  }
};

}  // namespace titan::testing
