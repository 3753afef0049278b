#include "worker/rank/nn/attention_core.h"

#include <c10/util/Exception.h>

#include <utility>

#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/attention_cudnn.h"
#include "worker/rank/nn/attention_flash.h"
#include "worker/rank/nn/attention_plan.h"
#include "worker/rank/nn/attention_ranges.h"
#include "worker/rank/nn/kept_results.h"
#include "worker/rank/nn/largest_logits.h"

namespace titan::nn {
namespace {

// Every query is in one pair: its keys are one range of the row.
struct BlockPlan final : AttentionPlan {
  std::vector<BlockPair> pairs;
  double scale = 0;

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sinks) const override {
    BlockwiseAttention attention(q, v.size(3), scale, /*once=*/true);
    attention.add(k, v, pairs);
    return attention.finish(sinks);
  }

  AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks, const BlockOutput& result) const override {
    BlockwiseGradients gradients(grad_out, q, result, scale);
    GradientSum grad_k(k), grad_v(v);
    gradients.add(k, v, pairs, grad_k, grad_v);
    return {gradients.grad_q(), grad_k.take().to(k.scalar_type()), grad_v.take().to(v.scalar_type()),
            sinks.defined() ? gradients.grad_sinks(sinks) : at::Tensor()};
  }
};

// By Titan's own kernels.
struct RangesPlan final : AttentionPlan {
  VisibleKeys visible;
  double scale = 0;

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sinks) const override {
    return ranges_forward(q, k, v, sinks, visible, scale);
  }

  AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks, const BlockOutput& result) const override {
    return ranges_backward(grad_out, q, k, v, sinks, result, visible, scale);
  }
};

// Whether LibTorch's own causal attention computes this, without writing the scores down, where the mask hides nothing
// more.
bool fused_by_torch(const AttentionInput& input) {
  // What is kept includes the logarithms of the denominators, which LibTorch's function does not hand out.
  if (KeptResults::current() != nullptr || input.sinks.defined() || input.q.size(3) != input.v.size(3)) return false;
  const at::ScalarType type = input.q.scalar_type();
  return input.q.is_cpu() || (input.q.is_cuda() && (type == at::kBFloat16 || type == at::kHalf));
}

// Whether the mask may hide earlier keys from one of so many tokens.
bool may_hide(const AttentionMask& mask, int64_t tokens, const MicrobatchContext& context) {
  return (mask.window > 0 && mask.window < tokens) || (mask.chunk > 0 && mask.chunk < tokens) ||
         (mask.documents && context.documents.defined());
}

}  // namespace

at::Tensor attend(const AttentionInput& input, const MicrobatchContext& context) {
  const int64_t tokens = input.q.size(2);
  TORCH_CHECK(input.k.size(2) == tokens && input.v.size(2) == tokens, "attention: ", tokens, " queries, ",
              input.k.size(2), " keys and ", input.v.size(2), " values of the same tokens");
  TORCH_CHECK(input.k.size(1) == input.v.size(1) && input.q.size(1) % input.k.size(1) == 0,
              "attention: ", input.q.size(1), " query heads cannot share ", input.k.size(1), " key heads");
  if (input.largest.defined()) {
    const Spans spans = spans_of(input.mask.documents ? context.documents : at::Tensor(), input.mask.chunk, tokens);
    note_largest_logits(input.q, input.k, visible_pairs(spans, input.mask.window, {{0, tokens}}, {{0, tokens}}),
                        input.scale, input.largest);
  }
  const bool hides = may_hide(input.mask, tokens, context);
  if (flash_takes(input.q, input.v.size(3)) && (hides || !fused_by_torch(input))) {
    return attend_by(!hides && cudnn_takes(input) ? cudnn_plan(input.scale) : flash_plan(input, context), input);
  }
  const Spans spans = spans_of(input.mask.documents ? context.documents : at::Tensor(), input.mask.chunk, tokens);
  std::vector<BlockPair> pairs = visible_pairs(spans, input.mask.window, {{0, tokens}}, {{0, tokens}});
  if (ranges_take(input.q, input.v.size(3))) {
    auto plan = c10::make_intrusive<RangesPlan>();
    plan->visible = visible_keys(pairs, input.q.size(0), tokens);
    plan->scale = input.scale;
    return attend_by(std::move(plan), input);
  }
  const bool one_causal_block = pairs.size() == 1 && pairs[0].row == kAllRows && !pairs[0].band.cuts_before(tokens);
  if (one_causal_block && fused_by_torch(input)) {
    const bool grouped = input.q.size(1) != input.k.size(1);
    return at::scaled_dot_product_attention(input.q, input.k, input.v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                            /*is_causal=*/true, input.scale, grouped);
  }
  auto plan = c10::make_intrusive<BlockPlan>();
  plan->pairs = std::move(pairs);
  plan->scale = input.scale;
  return attend_by(std::move(plan), input);
}

}  // namespace titan::nn
