#include "worker/rank/nn/grouped_product.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "worker/rank/nn/deferred_gradients.h"
#include "worker/rank/nn/kept_results.h"
#include "worker/rank/nn/products.h"

namespace titan::nn {
namespace {

// Each row's own bias, by a product where the groups have members: one call for all of them.
void add_bias(at::Tensor& y, const at::Tensor& bias, double factor, const RowGroups& groups) {
  if (groups.members.defined()) {
    y.addmm_(groups.members, bias, /*beta=*/1, /*alpha=*/factor);
    return;
  }
  for_each_group(rows_on_host(groups), [&](int64_t group, int64_t first, int64_t count) {
    if (count > 0) y.narrow(0, first, count).add_(bias.select(0, group), factor);
  });
}

at::Tensor bias_gradient(const at::Tensor& dy, const RowGroups& groups) {
  if (groups.members.defined()) return at::mm(groups.members.t(), dy);
  at::Tensor gradient = at::empty({groups.count(), dy.size(1)}, dy.options());
  for_each_group(rows_on_host(groups), [&](int64_t group, int64_t first, int64_t count) {
    at::Tensor part = gradient.select(0, group);
    at::sum_out(part, dy.narrow(0, first, count), {0});  // Zero for no rows.
  });
  return gradient;
}

struct GroupedProduct : torch::autograd::Function<GroupedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Parameter* parameter, double bias_factor,
                            const RowGroups& groups) {
    const ProductRecipe& recipe = recipe_of(*parameter);
    const Operand rows = recipe.of_input(x);
    // The weight is read where its parameter has it: its storage may be freed and refilled between the passes.
    context->save_for_backward(
        {rows.values, rows.scales, groups.ends, bias ? groups.members : at::Tensor(), groups.beyond});
    context->saved_data["rows"] = groups.rows;
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    context->saved_data["biased"] = bias.has_value();
    const OpCall call{.kind = OpCall::Kind::kGroupedProduct,
                      .weight = parameter,
                      .flops = 2.0 * static_cast<double>(x.numel()) * static_cast<double>(weight.size(1))};
    return kept_or(call, [&] {
      at::Tensor y = recipe.grouped_times_transposed(rows, operand_of(*parameter), groups);
      if (bias) add_bias(y, *bias, bias_factor, groups);
      return y;
    });
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::autograd::variable_list result(6);
    if (!gradients[0].defined()) return result;
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const RowGroups groups{context->saved_data["rows"].toIntVector(), saved[2], saved[3], saved[4]};
    const auto* parameter = reinterpret_cast<const Parameter*>(context->saved_data["parameter"].toInt());
    const ProductRecipe& recipe = recipe_of(*parameter);
    const Operand x{saved[0].detach(), saved[1]};
    const at::Tensor gradient = gradients[0].contiguous();
    const Operand dy = recipe.of_gradient(gradient);
    if (context->needs_input_grad(0)) result[0] = recipe.grouped_times(dy, operand_of(*parameter), groups);
    if (context->needs_input_grad(1)) {
      result[1] = compute_or_defer(*parameter,
                                   [&recipe, dy, x, groups] { return recipe.grouped_weight_gradient(dy, x, groups); });
    }
    if (context->saved_data["biased"].toBool() && context->needs_input_grad(2))
      result[2] = bias_gradient(gradient, groups);
    return result;
  }
};

at::Tensor product_of_groups(const at::Tensor& x, const Parameter& weight, const RowGroups& groups) {
  return GroupedProduct::apply(x, weight.weight, std::optional<at::Tensor>(), &weight, 1, groups);
}

}  // namespace

at::Tensor grouped_product(const at::Tensor& x, const Parameter& weight, const Parameter* bias, double bias_factor,
                           const RowGroups& groups) {
  const std::optional<at::Tensor> bias_value = bias == nullptr ? std::nullopt : std::make_optional(bias->weight);
  const at::Tensor input = x.contiguous();
  const at::Tensor product = GroupedProduct::apply(input, weight.weight, bias_value, &weight, bias_factor, groups);
  if (!weight.adapter) return product;
  const at::Tensor narrow = product_of_groups(input, *weight.adapter->a, groups);
  return product.add(product_of_groups(narrow, *weight.adapter->b, groups), weight.adapter->scale);
}

}  // namespace titan::nn
