#include "worker/rank/parallel/kept_scatter.h"

#include <torch/csrc/autograd/custom_function.h>

#include "worker/rank/comm/functional.h"
#include "worker/rank/nn/kept_results.h"

namespace titan::parallel {
namespace {

// With a result that was kept, the input's values are not read: it may stand in for a product that nobody computed.
struct KeptScatter : torch::autograd::Function<KeptScatter> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& partial, int64_t dim,
                            const comm::Group* group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["dim"] = dim;
    return nn::kept_or(
        {.kind = nn::OpCall::Kind::kScatter}, [&] { return comm::reduce_scatter(partial, dim, *group); }, partial);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& group = *reinterpret_cast<const comm::Group*>(context->saved_data["group"].toInt());
    return {comm::gather(gradients[0], context->saved_data["dim"].toInt(), group), {}, {}};
  }
};

}  // namespace

at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const comm::Group& group) {
  if (group.size() == 1 || nn::KeptResults::current() == nullptr) return comm::reduce_scatter(partial, dim, group);
  return KeptScatter::apply(partial, dim, &group);
}

}  // namespace titan::parallel
