#include "worker/nn/rms_norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "worker/kernels/cpu/rms_norm.h"
#include "worker/nn/own_kernels.h"

namespace titan::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const void* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

int64_t scratch_for(const at::Tensor& x) {
  if (device_kernels_for(x, kernels::Part::kModel) == nullptr) return kernels::rms_norm_scratch(x.size(1));
  return kernels::device_rms_norm_parts(x.size(0), x.size(1)) * x.size(1);
}

struct OwnRmsNorm : torch::autograd::Function<OwnRmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            double eps) {
    const at::Tensor x = rows_of(input);
    at::Tensor y = uninitialized(input.sizes(), input.options());
    const at::Tensor factors = uninitialized({x.size(0)}, input.options().dtype(at::kFloat));
    const at::Tensor scale = weight.value_or(at::Tensor());
    compute_rows<kernels::RmsNormForward>(x, kernels::rms_norm_forward,
                                          {.rows = x.size(0),
                                           .dim = x.size(1),
                                           .x = x.const_data_ptr(),
                                           .x_stride = x.stride(0),
                                           .weight = data_or_null(scale),
                                           .y = y.mutable_data_ptr(),
                                           .y_stride = x.size(1),
                                           .inverse_rms = factors.mutable_data_ptr<float>(),
                                           .eps = eps,
                                           .threads = at::get_num_threads()});
    context->save_for_backward({input, scale, factors});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const at::Tensor x = rows_of(input), dy = rows_of(gradients[0]);
    const int64_t dim = x.size(1);
    const at::Tensor dx = uninitialized(input.sizes(), input.options());
    const at::TensorOptions wide = input.options().dtype(at::kFloat);
    const bool wants_weight = weight.defined() && context->needs_input_grad(1);
    const at::Tensor dweight = wants_weight ? uninitialized({dim}, weight.options()) : at::Tensor();
    const at::Tensor scratch = wants_weight ? uninitialized({scratch_for(x)}, wide) : at::Tensor();
    compute_rows<kernels::RmsNormBackward>(x, kernels::rms_norm_backward,
                                           {.rows = x.size(0),
                                            .dim = dim,
                                            .x = x.const_data_ptr(),
                                            .x_stride = x.stride(0),
                                            .dy = dy.const_data_ptr(),
                                            .dy_stride = dy.stride(0),
                                            .weight = data_or_null(weight),
                                            .inverse_rms = saved[2].const_data_ptr<float>(),
                                            .dx = dx.mutable_data_ptr(),
                                            .dx_stride = dim,
                                            .dweight = wants_weight ? dweight.mutable_data_ptr() : nullptr,
                                            .dweight_type = kernels::Dtype::kBf16,
                                            .scratch = wants_weight ? scratch.mutable_data_ptr<float>() : nullptr,
                                            .threads = at::get_num_threads()});
    return {dx, dweight, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!own_rows_take(x, kernels::Part::kModel) || (weight.defined() && weight.scalar_type() != x.scalar_type())) {
    return at::rms_norm(x, x.size(-1), weight.defined() ? std::optional<at::Tensor>(weight) : std::nullopt, eps);
  }
  return OwnRmsNorm::apply(x, weight.defined() ? std::optional<at::Tensor>(weight) : std::nullopt, eps);
}

}  // namespace titan::nn
