#include "worker/rank/nn/deferred_gradients.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "worker/rank/nn/kept_results.h"
#include "worker/rank/nn/products.h"

namespace titan::nn {
namespace {

using Parameters = std::vector<const Parameter*>;

// Of one input, a result each, by one recipe. Both passes read a weight where its parameter has it: its storage may be
// freed and refilled between them.
struct DeferredProducts : torch::autograd::Function<DeferredProducts> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                                                at::TensorList /*weights*/, const Parameters& parameters) {
    const ProductRecipe& recipe = recipe_of(*parameters[0]);
    const Operand x = recipe.of_input(input);
    // Gradients of weights that are not trained are nobody's: the input need not wait for them.
    const bool trained =
        std::any_of(parameters.begin(), parameters.end(), [](const auto* one) { return !one->frozen; });
    context->save_for_backward(trained ? torch::autograd::variable_list{x.values, x.scales}
                                       : torch::autograd::variable_list(2));
    context->set_materialize_grads(false);  // A result that nobody uses costs nothing.
    torch::autograd::variable_list results;
    std::vector<int64_t> addresses;
    for (const Parameter* parameter : parameters) {
      addresses.push_back(reinterpret_cast<int64_t>(parameter));
      const OpCall call{.kind = OpCall::Kind::kProduct,
                        .weight = parameter,
                        .flops = 2.0 * static_cast<double>(input.numel()) * static_cast<double>(parameter->shape[0])};
      results.push_back(kept_or(call, [&] { return recipe.times_transposed(x, operand_of(*parameter)); }));
    }
    context->saved_data["parameters"] = addresses;
    return results;
  }

  // From the last product to the first, as autograd goes through products of their own.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> addresses = context->saved_data["parameters"].toIntVector();
    const Operand x{saved[0].defined() ? saved[0].detach() : at::Tensor(), saved[1]};
    torch::autograd::variable_list results(gradients.size() + 2);
    for (size_t i = gradients.size(); i-- > 0;) {
      if (!gradients[i].defined()) continue;
      const auto& parameter = *reinterpret_cast<const Parameter*>(addresses[i]);
      const ProductRecipe& recipe = recipe_of(parameter);
      const Operand dy = recipe.of_gradient(gradients[i]);
      if (context->needs_input_grad(0)) recipe.add_times(results[0], dy, operand_of(parameter));
      if (context->needs_input_grad(i + 1)) {
        results[i + 1] = compute_or_defer(parameter, [&recipe, x, dy] { return recipe.weight_gradient(dy, x); });
      }
    }
    return results;
  }
};

// Whether LibTorch's own product does all: nothing is quantised, deferred, kept or computed by Titan's kernels.
bool is_plain(const at::Tensor& input, const Parameter& weight) {
  return weight.products == nullptr && weight.deferred == nullptr && KeptResults::current() == nullptr &&
         !own_products_take(input, weight.weight);
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

}  // namespace titan::nn
