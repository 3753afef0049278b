#include "worker/rank/nn/matmul_autograd.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "worker/rank/nn/matmul.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::nn {
namespace {

using Parameters = std::vector<const Parameter*>;

// Multiplies one input by several weights of one recipe, with a result each. Both passes read a weight from its
// parameter, because its storage may be freed and refilled between them.
struct DeferredProducts : torch::autograd::Function<DeferredProducts> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                                                at::TensorList /*weights*/, const Parameters& parameters) {
    const MatmulRecipe& recipe = recipe_of(*parameters[0]);
    const Operand x = recipe.of_input(input);
    // Weights that are not trained need no gradients, so the input is not saved for them.
    const bool trained =
        std::any_of(parameters.begin(), parameters.end(), [](const auto* one) { return !one->frozen; });
    context->save_for_backward(trained ? torch::autograd::variable_list{x.values, x.scales}
                                       : torch::autograd::variable_list(2));
    context->set_materialize_grads(false);  // An unused result costs nothing.
    torch::autograd::variable_list results;
    std::vector<int64_t> addresses;
    for (const Parameter* parameter : parameters) {
      addresses.push_back(reinterpret_cast<int64_t>(parameter));
      const OpCall call{.kind = OpCall::Kind::kProduct,
                        .weight = parameter,
                        .flops = 2.0 * static_cast<double>(input.numel()) * static_cast<double>(parameter->shape[0])};
      results.push_back(saved_or_compute(call, [&] { return recipe.matmul_nt(x, operand_of(*parameter)); }));
    }
    context->saved_data["parameters"] = addresses;
    return results;
  }

  // Goes from the last product to the first, as autograd does with separate products.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> addresses = context->saved_data["parameters"].toIntVector();
    const Operand x{saved[0].defined() ? saved[0].detach() : at::Tensor(), saved[1]};
    torch::autograd::variable_list results(gradients.size() + 2);
    for (size_t i = gradients.size(); i-- > 0;) {
      if (!gradients[i].defined()) continue;
      const auto& parameter = *reinterpret_cast<const Parameter*>(addresses[i]);
      const MatmulRecipe& recipe = recipe_of(parameter);
      const Operand dy = recipe.of_gradient(gradients[i]);
      if (context->needs_input_grad(0)) recipe.add_matmul_nn(results[0], dy, operand_of(parameter));
      if (context->needs_input_grad(i + 1)) {
        results[i + 1] = compute_or_defer(parameter, [&recipe, x, dy] { return recipe.weight_gradient(dy, x); });
      }
    }
    return results;
  }
};

// Whether LibTorch's product suffices: nothing is quantised, deferred, kept or computed by Titan's kernels.
bool is_plain(const at::Tensor& input, const Parameter& weight) {
  return weight.products == nullptr && weight.deferred == nullptr && SavedActivations::current() == nullptr &&
         !can_use_own_gemm(input, weight.weight);
}

at::Tensor product_of_weight(const at::Tensor& input, const Parameter& weight) {
  if (is_plain(input, weight)) return at::linear(input, weight.weight);
  return DeferredProducts::apply(input, at::TensorList(&weight.weight, 1), Parameters{&weight})[0];
}

}  // namespace

at::Tensor compute_or_defer(const Parameter& parameter, std::function<at::Tensor()> compute) {
  GradientQueue* queue = parameter.deferred == nullptr ? nullptr : parameter.deferred->queue();
  if (queue == nullptr) return compute();
  queue->push_back({&parameter, std::move(compute)});
  return {};
}

at::Tensor adapted(const at::Tensor& product, const at::Tensor& input, const Parameter& weight) {
  if (!weight.adapter) return product;
  const Adapter& adapter = *weight.adapter;
  return product.add(product_of_weight(product_of_weight(input, *adapter.a), *adapter.b), adapter.scale);
}

at::Tensor matrix_product(const at::Tensor& input, const Parameter& weight) {
  return adapted(product_of_weight(input, weight), input, weight);
}

std::vector<at::Tensor> matrix_products(const at::Tensor& input, const std::vector<const Parameter*>& parameters) {
  std::vector<at::Tensor> weights;
  weights.reserve(parameters.size());
  for (const Parameter* parameter : parameters) weights.push_back(parameter->weight);
  std::vector<at::Tensor> results = DeferredProducts::apply(input, at::TensorList(weights), parameters);
  for (size_t i = 0; i < results.size(); ++i) results[i] = adapted(results[i], input, *parameters[i]);
  return results;
}

namespace {

// Adds each row's bias. If the groups have members, one product does so for all of them.
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
    at::sum_out(part, dy.narrow(0, first, count), {0});  // Zero for a group without rows.
  });
  return gradient;
}

struct GroupedProduct : torch::autograd::Function<GroupedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Parameter* parameter, double bias_factor,
                            const RowGroups& groups) {
    const MatmulRecipe& recipe = recipe_of(*parameter);
    const Operand rows = recipe.of_input(x);
    // The weight is read from its parameter, because its storage may be freed and refilled between the passes.
    context->save_for_backward(
        {rows.values, rows.scales, groups.ends, bias ? groups.members : at::Tensor(), groups.beyond});
    context->saved_data["rows"] = groups.rows;
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    context->saved_data["biased"] = bias.has_value();
    const OpCall call{.kind = OpCall::Kind::kGroupedProduct,
                      .weight = parameter,
                      .flops = 2.0 * static_cast<double>(x.numel()) * static_cast<double>(weight.size(1))};
    return saved_or_compute(call, [&] {
      at::Tensor y = recipe.grouped_matmul_nt(rows, operand_of(*parameter), groups);
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
    const MatmulRecipe& recipe = recipe_of(*parameter);
    const Operand x{saved[0].detach(), saved[1]};
    const at::Tensor gradient = gradients[0].contiguous();
    const Operand dy = recipe.of_gradient(gradient);
    if (context->needs_input_grad(0)) result[0] = recipe.grouped_matmul_nn(dy, operand_of(*parameter), groups);
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
