#include "worker/rank/nn/feed_forward.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/rank/kernels/cpu/swiglu.h"
#include "worker/rank/nn/own_kernels.h"

namespace titan::nn {

namespace {

const Init* bias(const FeedForwardForm& form) { return form.bias_init ? &*form.bias_init : nullptr; }

}  // namespace

FeedForward::FeedForward(const Declare& declare, const std::string& fqn, int64_t dim, int64_t hidden, Init w1_init,
                         Init depth_init, const FeedForwardForm& form)
    : w1(declare, fqn + ".w1.weight", dim, hidden, w1_init, bias(form)),
      w2(declare, fqn + ".w2.weight", hidden, dim, depth_init, bias(form)),
      w3(declare, fqn + ".w3.weight", dim, hidden, depth_init, bias(form)),
      gelu_tanh_(form.gelu_tanh) {}

at::Tensor FeedForward::forward(const at::Tensor& input) const {
  const at::Tensor x = through(seams.input, input);
  const std::vector<at::Tensor> wide = project(x, {&w1, &w3});
  return through(seams.output, w2.forward(gelu_tanh_ ? geglu(wide[0], wide[1]) : swiglu(wide[0], wide[1])));
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kSlope = 1.702;  // x * sigmoid(1.702 x) is the sigmoid form of GELU.

at::Tensor pairs_of(const at::Tensor& x) { return x.unflatten(-1, {-1, 2}); }

// Computes the activation with Titan's kernel. If `linear` is undefined, gate and linear numbers alternate in `gate`.
at::Tensor own_forward(const at::Tensor& gate, const at::Tensor& linear, double limit) {
  const at::Tensor gates = rows_of(gate), linears = linear.defined() ? rows_of(linear) : linear;
  std::vector<int64_t> shape = gate.sizes().vec();
  if (!linear.defined()) shape.back() /= 2;
  at::Tensor y = uninitialized(shape, gate.options());
  compute_rows<kernels::SwigluForward>(gates, kernels::swiglu_forward,
                                       {.rows = gates.size(0),
                                        .width = shape.back(),
                                        .gate = gates.const_data_ptr(),
                                        .gate_stride = gates.stride(0),
                                        .linear = linear.defined() ? linears.const_data_ptr() : nullptr,
                                        .linear_stride = linear.defined() ? linears.stride(0) : 0,
                                        .y = y.mutable_data_ptr(),
                                        .y_stride = shape.back(),
                                        .limit = static_cast<float>(limit),
                                        .threads = at::get_num_threads()});
  return y;
}

struct Gradients {
  at::Tensor gate, linear;
};

Gradients own_backward(const at::Tensor& gate, const at::Tensor& linear, const at::Tensor& grad, double limit) {
  const at::Tensor gates = rows_of(gate), linears = linear.defined() ? rows_of(linear) : linear, dy = rows_of(grad);
  Gradients gradients{uninitialized(gate.sizes(), gate.options()), {}};
  if (linear.defined()) gradients.linear = uninitialized(linear.sizes(), linear.options());
  compute_rows<kernels::SwigluBackward>(gates, kernels::swiglu_backward,
                                        {.rows = gates.size(0),
                                         .width = dy.size(1),
                                         .gate = gates.const_data_ptr(),
                                         .gate_stride = gates.stride(0),
                                         .linear = linear.defined() ? linears.const_data_ptr() : nullptr,
                                         .linear_stride = linear.defined() ? linears.stride(0) : 0,
                                         .dy = dy.const_data_ptr(),
                                         .dy_stride = dy.stride(0),
                                         .dgate = gradients.gate.mutable_data_ptr(),
                                         .dgate_stride = gate.size(-1),
                                         .dlinear = linear.defined() ? gradients.linear.mutable_data_ptr() : nullptr,
                                         .dlinear_stride = linear.defined() ? linear.size(-1) : 0,
                                         .limit = static_cast<float>(limit),
                                         .threads = at::get_num_threads()});
  return gradients;
}

struct OwnSwiglu : torch::autograd::Function<OwnSwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& linear) {
    context->save_for_backward({gate, linear});
    return own_forward(gate, linear, 0);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    Gradients result = own_backward(saved[0], saved[1], gradients[0], 0);
    return {std::move(result.gate), std::move(result.linear)};
  }
};

struct ClampedSwiglu : torch::autograd::Function<ClampedSwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double limit) {
    context->save_for_backward({x});
    context->saved_data["limit"] = limit;
    if (can_use_row_kernels(x, kernels::TrainingPart::kModel)) return own_forward(x, {}, limit);
    const at::Tensor pairs = pairs_of(x);
    const at::Tensor gate = at::clamp_max(pairs.select(-1, 0), limit);
    return (at::clamp(pairs.select(-1, 1), -limit, limit) + 1).mul_(gate).mul_(at::sigmoid(gate * kSlope));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    const double limit = context->saved_data["limit"].toDouble();
    const at::Tensor& dy = gradients[0];
    if (can_use_row_kernels(x, kernels::TrainingPart::kModel)) return {own_backward(x, {}, dy, limit).gate, {}};
    const at::Tensor free_gate = pairs_of(x).select(-1, 0), free_linear = pairs_of(x).select(-1, 1);
    const at::Tensor gate = at::clamp_max(free_gate, limit);
    const at::Tensor sigmoid = at::sigmoid(gate * kSlope);
    at::Tensor dx = at::empty(x.sizes(), x.options());
    // Clamped inputs have no gradient.
    const at::Tensor linear = at::clamp(free_linear, -limit, limit);
    const at::Tensor slope = sigmoid * (1 + gate * kSlope * (1 - sigmoid));
    pairs_of(dx).select(-1, 0).copy_((dy * (linear + 1) * slope).mul_(free_gate.eq(gate)));
    pairs_of(dx).select(-1, 1).copy_((dy * gate * sigmoid).mul_(free_linear.eq(linear)));
    return {dx, {}};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& linear) {
  if (can_use_row_kernels(gate, kernels::TrainingPart::kModel) && linear.scalar_type() == gate.scalar_type())
    return OwnSwiglu::apply(gate, linear);
  return at::silu(gate) * linear;
}

at::Tensor swiglu(at::Tensor gate, const std::function<at::Tensor()>& linear) {
  if (can_use_row_kernels(gate, kernels::TrainingPart::kModel)) return swiglu(gate, linear());
  gate = at::silu(gate);
  return gate * linear();
}

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& linear) { return at::gelu(gate, "tanh") * linear; }

at::Tensor clamped_swiglu(const at::Tensor& x, double limit) { return ClampedSwiglu::apply(x, limit); }

}  // namespace titan::nn
