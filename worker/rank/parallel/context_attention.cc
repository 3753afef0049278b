#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/attention_plan.h"
#include "worker/rank/nn/largest_logits.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/context_exchange.h"

namespace titan::parallel {
namespace {

// A rank's keys and values as one message [B, T, Hkv, D + Dv].
at::Tensor pack(const at::Tensor& k, const at::Tensor& v) { return at::cat({k.transpose(1, 2), v.transpose(1, 2)}, 3); }

struct KeysAndValues {
  KeysAndValues(const at::Tensor& packed, int64_t head)
      : k(packed.narrow(3, 0, head).transpose(1, 2)),
        v(packed.narrow(3, head, packed.size(3) - head).transpose(1, 2)) {}
  at::Tensor k, v;  // Views [B, Hkv, T, D] and [B, Hkv, T, Dv].
};

// Which of this rank's queries meet which keys of each rank.
struct ContextPlan final : nn::AttentionPlan {
  std::vector<std::vector<nn::BlockPair>> pairs;  // By the keys' owner.
  std::shared_ptr<const ContextExchange> exchange;
  double scale = 0;
  at::Tensor largest;  // AttentionInput::largest

  int64_t keys(const at::Tensor& k) const override { return k.size(2) * static_cast<int64_t>(pairs.size()); }

  nn::BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& sinks) const override {
    nn::BlockwiseAttention attention(q, v.size(3), scale, /*once=*/false);
    exchange->visit(pack(k, v), [&](int owner, const at::Tensor& packed) {
      const KeysAndValues block(packed, k.size(3));
      attention.add(block.k, block.v, pairs[owner]);
      if (largest.defined()) nn::note_largest_logits(q, block.k, pairs[owner], scale, largest);
    });
    return attention.finish(sinks);
  }

  nn::AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& sinks,
                                  const nn::BlockOutput& result) const override {
    nn::BlockwiseGradients gradients(grad_out, q, result, scale);
    const at::Tensor sum = exchange->visit_and_reduce(pack(k, v), [&](int owner, const at::Tensor& packed) {
      const KeysAndValues block(packed, k.size(3));
      at::Tensor part = at::zeros(packed.sizes(), packed.options().dtype(nn::accumulate_type(packed.scalar_type())));
      const KeysAndValues target(part, k.size(3));
      nn::GradientSum grad_k = nn::GradientSum::into(target.k), grad_v = nn::GradientSum::into(target.v);
      gradients.add(block.k, block.v, pairs[owner], grad_k, grad_v);
      return part;
    });
    const KeysAndValues own(sum, k.size(3));
    return {gradients.grad_q(), own.k.to(k.scalar_type()), own.v.to(v.scalar_type()),
            sinks.defined() ? gradients.grad_sinks(sinks) : at::Tensor()};
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
    TORCH_CHECK(microbatch.shares != nullptr && static_cast<int>(microbatch.shares->size()) == ranks,
                "context parallel: a microbatch that take_share() has not dealt to ", ranks, " ranks");
    const nn::Spans spans =
        nn::spans_of(input.mask.documents ? microbatch.documents : at::Tensor(), input.mask.chunk, seq_len);
    auto plan = c10::make_intrusive<ContextPlan>();
    const std::vector<nn::Segment>& mine = microbatch.shares->at(context.group->rank());
    for (const std::vector<nn::Segment>& owned : *microbatch.shares) {
      plan->pairs.push_back(nn::visible_pairs(spans, input.mask.window, mine, owned));
    }
    plan->exchange = exchange;
    plan->scale = input.scale;
    plan->largest = input.largest;
    return nn::attend_by(std::move(plan), input);
  };
}

}  // namespace titan::parallel
