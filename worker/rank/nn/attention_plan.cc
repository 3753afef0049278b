#include "worker/rank/nn/attention_plan.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/kept_results.h"

namespace titan::nn {
namespace {

template <typename Compute>
BlockOutput compute_or_keep(const at::Tensor& q, int64_t keys, const Compute& compute) {
  if (KeptResults::current() == nullptr) return compute();
  // Two products, and half of the pairs.
  const OpCall call{.kind = OpCall::Kind::kAttention,
                    .flops = 2.0 * static_cast<double>(q.numel()) * static_cast<double>(keys)};
  std::vector<at::Tensor> results = kept_or(call, {}, [&] {
    BlockOutput output = compute();
    return std::vector<at::Tensor>{std::move(output.out), std::move(output.lse)};
  });
  return {std::move(results[0]), std::move(results[1])};
}

class PlannedAttention : public torch::autograd::Function<PlannedAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& optional_sinks,
                            c10::intrusive_ptr<AttentionPlan> plan) {
    const at::Tensor sinks = optional_sinks.value_or(at::Tensor());
    const BlockOutput result = compute_or_keep(q, plan->keys(k), [&] { return plan->forward(q, k, v, sinks); });
    context->save_for_backward({q, k, v, sinks, result.out, result.lse});
    context->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return result.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto plan = c10::static_intrusive_pointer_cast<AttentionPlan>(context->saved_data["plan"].toCapsule());
    AttentionGradients gradients =
        plan->backward(dense_heads(grads[0]), saved[0], saved[1], saved[2], saved[3], {saved[4], saved[5]});
    return {std::move(gradients.q), std::move(gradients.k), std::move(gradients.v), std::move(gradients.sinks),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor attend_by(c10::intrusive_ptr<AttentionPlan> plan, const AttentionInput& input) {
  // Arguments of autograd functions may not be undefined tensors.
  const auto sinks = input.sinks.defined() ? std::optional<at::Tensor>(input.sinks) : std::nullopt;
  return PlannedAttention::apply(dense_heads(input.q), dense_heads(input.k), dense_heads(input.v), sinks,
                                 std::move(plan));
}

}  // namespace titan::nn
