#include "worker/nn/attention_core.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "worker/nn/attention_blocks.h"
#include "worker/nn/attention_ranges.h"
#include "worker/nn/kept_results.h"

namespace titan::nn {
namespace {

// How one call's blocks lie; travels to its backward pass.
struct BlockPlan final : torch::CustomClassHolder {
  std::vector<BlockPair> pairs;
  double scale = 0;
};

// Every query is in one pair: its keys are one range of the row.
class BlockedAttention : public torch::autograd::Function<BlockedAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<BlockPlan> plan) {
    const BlockOutput result = attend_or_keep(q, k.size(2), [&] {
      BlockwiseAttention attention(q, v.size(3), plan->scale, /*once=*/true);
      attention.add(k, v, plan->pairs);
      return attention.finish(sinks.value_or(at::Tensor()));
    });
    context->save_for_backward({q, k, v, sinks.value_or(at::Tensor()), result.out, result.lse});
    context->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return result.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &sinks = saved[3];
    const auto plan = c10::static_intrusive_pointer_cast<BlockPlan>(context->saved_data["plan"].toCapsule());
    BlockwiseGradients gradients(grads[0], q, {saved[4], saved[5]}, plan->scale);
    GradientSum grad_k(k), grad_v(v);
    gradients.add(k, v, plan->pairs, grad_k, grad_v);
    return {gradients.grad_q(), grad_k.take().to(k.scalar_type()), grad_v.take().to(v.scalar_type()),
            sinks.defined() ? gradients.grad_sinks(sinks) : at::Tensor(), at::Tensor()};
  }
};

// How one call of Titan's own kernels sees its keys; travels to its backward pass.
struct RangesPlan final : torch::CustomClassHolder {
  VisibleKeys visible;
  double scale = 0;
};

class RangesAttention : public torch::autograd::Function<RangesAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<RangesPlan> plan) {
    const BlockOutput result = attend_or_keep(q, k.size(2), [&] {
      return ranges_forward(q, k, v, sinks.value_or(at::Tensor()), plan->visible, plan->scale);
    });
    context->save_for_backward({q, k, v, sinks.value_or(at::Tensor()), result.out, result.lse});
    context->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return result.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto plan = c10::static_intrusive_pointer_cast<RangesPlan>(context->saved_data["plan"].toCapsule());
    RangesGradients gradients = ranges_backward(dense_heads(grads[0]), saved[0], saved[1], saved[2], saved[3],
                                                {saved[4], saved[5]}, plan->visible, plan->scale);
    return {std::move(gradients.q), std::move(gradients.k), std::move(gradients.v), std::move(gradients.sinks),
            at::Tensor()};
  }
};

// Whether LibTorch's own attention computes this without writing the scores down.
bool fused_by_torch(const AttentionInput& input, const BlockPlan& plan) {
  const bool one_causal_block =
      plan.pairs.size() == 1 && plan.pairs[0].row == kAllRows && !plan.pairs[0].band.cuts_before(input.q.size(2));
  if (!one_causal_block || input.sinks.defined() || input.q.size(3) != input.v.size(3)) return false;
  const at::ScalarType type = input.q.scalar_type();
  return input.q.is_cpu() || (input.q.is_cuda() && (type == at::kBFloat16 || type == at::kHalf));
}

}  // namespace

at::Tensor attend(const AttentionInput& input, const MicrobatchContext& context) {
  const int64_t tokens = input.q.size(2);
  TORCH_CHECK(input.k.size(2) == tokens && input.v.size(2) == tokens, "attention: ", tokens, " queries, ",
              input.k.size(2), " keys and ", input.v.size(2), " values of the same tokens");
  TORCH_CHECK(input.k.size(1) == input.v.size(1) && input.q.size(1) % input.k.size(1) == 0,
              "attention: ", input.q.size(1), " query heads cannot share ", input.k.size(1), " key heads");
  const Spans spans = spans_of(input.mask.documents ? context.documents : at::Tensor(), input.mask.chunk, tokens);
  std::vector<BlockPair> pairs = visible_pairs(spans, input.mask.window, {{0, tokens}}, {{0, tokens}});
  if (ranges_take(input.q, input.v.size(3))) {
    auto plan = c10::make_intrusive<RangesPlan>();
    plan->visible = visible_keys(pairs, input.q.size(0), tokens);
    plan->scale = input.scale;
    return RangesAttention::apply(dense_heads(input.q), dense_heads(input.k), dense_heads(input.v),
                                  optional_tensor(input.sinks), std::move(plan));
  }
  auto plan = c10::make_intrusive<BlockPlan>();
  plan->pairs = std::move(pairs);
  plan->scale = input.scale;
  // What is kept includes the logarithms of the denominators, which LibTorch's function does not hand out.
  if (KeptResults::current() == nullptr && fused_by_torch(input, *plan)) {
    const bool grouped = input.q.size(1) != input.k.size(1);
    return at::scaled_dot_product_attention(input.q, input.k, input.v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                            /*is_causal=*/true, input.scale, grouped);
  }
  return BlockedAttention::apply(dense_heads(input.q), dense_heads(input.k), dense_heads(input.v),
                                 optional_tensor(input.sinks), std::move(plan));
}

}  // namespace titan::nn
