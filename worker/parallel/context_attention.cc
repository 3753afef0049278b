#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "worker/nn/attention_blocks.h"
#include "worker/nn/layers.h"
#include "worker/parallel/context.h"
#include "worker/parallel/context_exchange.h"

namespace titan::parallel {
namespace {

// One call: which of this rank's queries meet which keys of each rank. Travels to its backward pass.
struct ContextPlan final : torch::CustomClassHolder {
  std::vector<std::vector<nn::BlockPair>> pairs;  // By the keys' owner.
  std::shared_ptr<const ContextExchange> exchange;
  double scale = 0;
};

// A rank's keys and values as one message [B, T, Hkv, D + Dv].
at::Tensor pack(const at::Tensor& k, const at::Tensor& v) { return at::cat({k.transpose(1, 2), v.transpose(1, 2)}, 3); }

struct KeysAndValues {
  KeysAndValues(const at::Tensor& packed, int64_t head)
      : k(packed.narrow(3, 0, head).transpose(1, 2)),
        v(packed.narrow(3, head, packed.size(3) - head).transpose(1, 2)) {}
  at::Tensor k, v;  // Views [B, Hkv, T, D] and [B, Hkv, T, Dv].
};

class ContextAttention : public torch::autograd::Function<ContextAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<ContextPlan> plan) {
    const int64_t keys = k.size(2) * static_cast<int64_t>(plan->pairs.size());
    const nn::BlockOutput result = nn::attend_or_keep(q, keys, [&] {
      nn::BlockwiseAttention attention(q, v.size(3), plan->scale, /*once=*/false);
      plan->exchange->visit(pack(k, v), [&](int owner, const at::Tensor& packed) {
        const KeysAndValues block(packed, k.size(3));
        attention.add(block.k, block.v, plan->pairs[owner]);
      });
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
    const auto plan = c10::static_intrusive_pointer_cast<ContextPlan>(context->saved_data["plan"].toCapsule());
    nn::BlockwiseGradients gradients(grads[0], q, {saved[4], saved[5]}, plan->scale);
    const at::Tensor sum = plan->exchange->visit_and_reduce(pack(k, v), [&](int owner, const at::Tensor& packed) {
      const KeysAndValues block(packed, k.size(3));
      at::Tensor part = at::zeros(packed.sizes(), packed.options().dtype(nn::accumulate_type(packed.scalar_type())));
      const KeysAndValues target(part, k.size(3));
      nn::GradientSum grad_k = nn::GradientSum::into(target.k), grad_v = nn::GradientSum::into(target.v);
      gradients.add(block.k, block.v, plan->pairs[owner], grad_k, grad_v);
      return part;
    });
    const KeysAndValues own(sum, k.size(3));
    return {gradients.grad_q(), own.k.to(k.scalar_type()), own.v.to(v.scalar_type()),
            sinks.defined() ? gradients.grad_sinks(sinks) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

nn::AttentionCore context_parallel_attention(const ContextParallel& context) {
  if (context.group->size() == 1) return nn::attend;
  TORCH_CHECK(context.rotate == "allgather" || context.rotate == "alltoall", "context parallel: rotate method \"",
              context.rotate, "\" is neither \"allgather\" nor \"alltoall\"");
  std::shared_ptr<const ContextExchange> exchange =
      context.rotate == "alltoall" ? make_ring_exchange(*context.group) : make_gathering_exchange(*context.group);
  return [context, exchange](const nn::AttentionInput& input, const nn::MicrobatchContext& microbatch) {
    const int ranks = context.group->size();
    const int64_t seq_len = input.q.size(2) * ranks;
    TORCH_CHECK(microbatch.whole_row == 0 || microbatch.whole_row == seq_len, "context parallel: ", ranks,
                " shares of ", input.q.size(2), " tokens for rows of ", microbatch.whole_row);
    const nn::Spans spans =
        nn::spans_of(input.mask.documents ? microbatch.documents : at::Tensor(), input.mask.chunk, seq_len);
    auto plan = c10::make_intrusive<ContextPlan>();
    const std::vector<nn::Segment> mine = share_of(seq_len, context.group->rank(), context);
    for (int owner = 0; owner < ranks; ++owner) {
      plan->pairs.push_back(nn::visible_pairs(spans, input.mask.window, mine, share_of(seq_len, owner, context)));
    }
    plan->exchange = exchange;
    plan->scale = input.scale;
    return ContextAttention::apply(nn::dense_heads(input.q), nn::dense_heads(input.k), nn::dense_heads(input.v),
                                   nn::optional_tensor(input.sinks), std::move(plan));
  };
}

}  // namespace titan::parallel
