#include "worker/nn/deferred_gradients.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "worker/nn/kept_results.h"
#include "worker/nn/products.h"

namespace titan::nn {
namespace {

// Saves the leaf itself, whose storage may be freed and refilled between the passes.
struct DeferredProduct : torch::autograd::Function<DeferredProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const Parameter* parameter) {
    context->save_for_backward({input, weight});
    context->saved_data["parameter"] = reinterpret_cast<int64_t>(parameter);
    const OpCall call{.kind = OpCall::Kind::kProduct,
                      .weight = parameter,
                      .flops = 2.0 * static_cast<double>(input.numel()) * static_cast<double>(weight.size(0))};
    return kept_or(call, [&] { return times_transposed(input, weight); });
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const auto* parameter = reinterpret_cast<const Parameter*>(context->saved_data["parameter"].toInt());
    const at::Tensor& output_gradient = gradients[0];
    if (!output_gradient.defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    at::Tensor input_gradient, weight_gradient;
    if (context->needs_input_grad(0)) input_gradient = times(output_gradient, saved[1]);
    if (context->needs_input_grad(1)) {
      weight_gradient = compute_or_defer(
          *parameter, [x = saved[0].detach(), dy = output_gradient] { return nn::weight_gradient(dy, x); });
    }
    return {std::move(input_gradient), std::move(weight_gradient), at::Tensor()};
  }
};

}  // namespace

at::Tensor compute_or_defer(const Parameter& parameter, std::function<at::Tensor()> compute) {
  GradientQueue* queue = parameter.deferred == nullptr ? nullptr : parameter.deferred->queue();
  if (queue == nullptr) return compute();
  queue->push_back({&parameter, std::move(compute)});
  return {};
}

at::Tensor matrix_product(const at::Tensor& input, const Parameter& weight) {
  const bool plain = weight.deferred == nullptr && KeptResults::current() == nullptr;
  if (plain && !own_products_take(input, weight.weight)) return at::linear(input, weight.weight);
  return DeferredProduct::apply(input, weight.weight, &weight);
}

}  // namespace titan::nn
