#include "worker/nn/clamped_swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

namespace titan::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kSlope = 1.702;  // x * sigmoid(1.702 x): the sigmoid form of GELU.

at::Tensor pairs_of(const at::Tensor& x) { return x.unflatten(-1, {-1, 2}); }

struct ClampedSwiglu : torch::autograd::Function<ClampedSwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double limit) {
    context->save_for_backward({x});
    context->saved_data["limit"] = limit;
    const at::Tensor pairs = pairs_of(x);
    const at::Tensor gate = at::clamp_max(pairs.select(-1, 0), limit);
    return (at::clamp(pairs.select(-1, 1), -limit, limit) + 1).mul_(gate).mul_(at::sigmoid(gate * kSlope));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    const double limit = context->saved_data["limit"].toDouble();
    const at::Tensor& dy = gradients[0];
    const at::Tensor free_gate = pairs_of(x).select(-1, 0), free_linear = pairs_of(x).select(-1, 1);
    const at::Tensor gate = at::clamp_max(free_gate, limit);
    const at::Tensor sigmoid = at::sigmoid(gate * kSlope);
    at::Tensor dx = at::empty(x.sizes(), x.options());
    // What is clamped has no gradient.
    const at::Tensor linear = at::clamp(free_linear, -limit, limit);
    const at::Tensor slope = sigmoid * (1 + gate * kSlope * (1 - sigmoid));
    pairs_of(dx).select(-1, 0).copy_((dy * (linear + 1) * slope).mul_(free_gate.eq(gate)));
    pairs_of(dx).select(-1, 1).copy_((dy * gate * sigmoid).mul_(free_linear.eq(linear)));
    return {dx, {}};
  }
};

}  // namespace

at::Tensor clamped_swiglu(const at::Tensor& x, double limit) { return ClampedSwiglu::apply(x, limit); }

}  // namespace titan::nn
