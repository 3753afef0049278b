#include "worker/rank/nn/matmul_recipe.h"

#include "worker/rank/nn/block.h"
#include "worker/rank/nn/matmul.h"

namespace titan::nn {
namespace {

class PlainProducts final : public MatmulRecipe {
 public:
  Operand of_input(const at::Tensor& x) const override { return {x, {}}; }
  Operand of_weight(const at::Tensor& weight) const override { return {weight, {}}; }
  Operand of_gradient(const at::Tensor& dy) const override { return {dy, {}}; }

  at::Tensor matmul_nt(const Operand& x, const Operand& weight) const override {
    return nn::matmul_nt(x.values, weight.values);
  }
  void add_matmul_nn(at::Tensor& sum, const Operand& dy, const Operand& weight) const override {
    nn::add_matmul_nn(sum, dy.values, weight.values);
  }
  at::Tensor weight_gradient(const Operand& dy, const Operand& x) const override {
    return nn::weight_gradient(dy.values, x.values);
  }

  at::Tensor grouped_matmul_nt(const Operand& x, const Operand& weights, const RowGroups& groups) const override {
    return nn::grouped_matmul_nt(x.values, weights.values, groups);
  }
  at::Tensor grouped_matmul_nn(const Operand& dy, const Operand& weights, const RowGroups& groups) const override {
    return nn::grouped_matmul_nn(dy.values, weights.values, groups);
  }
  at::Tensor grouped_weight_gradient(const Operand& dy, const Operand& x, const RowGroups& groups) const override {
    return nn::grouped_weight_gradient(dy.values, x.values, groups);
  }
};

}  // namespace

const MatmulRecipe& plain_matmul_recipe() {
  static const PlainProducts recipe;
  return recipe;
}

const MatmulRecipe& recipe_of(const Parameter& weight) {
  return weight.products == nullptr ? plain_matmul_recipe() : *weight.products;
}

Operand operand_of(const Parameter& weight) {
  return weight.arrived.quantised() ? weight.arrived : recipe_of(weight).of_weight(weight.weight);
}

}  // namespace titan::nn
