#include "worker/rank/nn/wide_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "worker/rank/nn/layers.h"

namespace titan::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the mean of each row, [..., 1], over the channels of all ranks.
at::Tensor mean_of_rows(const at::Tensor& terms, const comm::Group* ranks) {
  if (ranks == nullptr) return terms.mean(-1, /*keepdim=*/true);
  at::Tensor sum = terms.sum(-1, /*keepdim=*/true);
  ranks->all_reduce(sum).wait();
  return sum.div_(static_cast<double>(terms.size(-1) * ranks->size()));
}

struct WideRmsNorm : torch::autograd::Function<WideRmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps,
                            double offset, const comm::Group* ranks) {
    const at::ScalarType wide = accumulate_type(x.scalar_type());
    const at::Tensor values = x.to(wide);
    const at::Tensor factors = mean_of_rows(values.square(), ranks).add_(eps).rsqrt_();
    context->save_for_backward({x, weight, factors});
    context->saved_data["offset"] = offset;
    context->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    return (values * factors).mul_(weight.to(wide) + offset).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &factors = saved[2];
    const auto* ranks = reinterpret_cast<const comm::Group*>(context->saved_data["ranks"].toInt());
    const at::ScalarType wide = factors.scalar_type();
    const at::Tensor normed = x.to(wide) * factors;
    at::Tensor dweight, dnormed = gradients[0].to(wide);
    if (context->needs_input_grad(1)) {
      dweight = (dnormed * normed).flatten(0, -2).sum(0).to(weight.scalar_type());
    }
    dnormed = dnormed * (weight.to(wide) + context->saved_data["offset"].toDouble());
    const at::Tensor along = mean_of_rows(dnormed * normed, ranks);
    return {dnormed.sub_(normed * along).mul_(factors).to(x.scalar_type()), dweight, {}, {}, {}};
  }
};

}  // namespace

at::Tensor wide_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset,
                         const comm::Group* ranks) {
  return WideRmsNorm::apply(x, weight, eps, offset, ranks != nullptr && ranks->size() > 1 ? ranks : nullptr);
}

}  // namespace titan::nn
