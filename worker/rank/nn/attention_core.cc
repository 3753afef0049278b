#include "worker/rank/nn/attention_core.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/attention_fused.h"
#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_ranges.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::nn {
namespace {

// Computes one pair of blocks after another. Every query is in exactly one pair, because its keys are one range of the
// row.
struct BlockPlan final : AttentionPlan {
  std::vector<BlockPair> pairs;
  ScoreForm scores;

  BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sinks) const override {
    BlockwiseAttention attention(q, v.size(3), scores, /*once=*/true);
    attention.add(k, v, pairs);
    return attention.finish(sinks);
  }

  AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks, const BlockOutput& result) const override {
    BlockwiseGradients gradients(grad_out, q, result, scores);
    GradientSum grad_k(k), grad_v(v);
    gradients.add(k, v, pairs, grad_k, grad_v);
    return {gradients.grad_q(), grad_k.take().to(k.scalar_type()), grad_v.take().to(v.scalar_type()),
            sinks.defined() ? gradients.grad_sinks(sinks) : at::Tensor()};
  }
};

// Uses Titan's own kernels.
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

// Whether LibTorch's attention, which does not store the scores, can compute this input if the mask hides nothing or
// only later keys.
bool fused_by_torch(const AttentionInput& input) {
  // Saved results include the logs of the denominators, which LibTorch's function does not return.
  if (SavedActivations::current() != nullptr || input.sinks.defined() || input.q.size(3) != input.v.size(3))
    return false;
  const at::ScalarType type = input.q.scalar_type();
  return input.q.is_cpu() || (input.q.is_cuda() && (type == at::kBFloat16 || type == at::kHalf));
}

// Whether the mask may hide earlier keys from one of `tokens` tokens.
bool may_hide(const AttentionMask& mask, int64_t tokens, const MicrobatchContext& context) {
  return (mask.window > 0 && mask.window < tokens) || (mask.chunk > 0 && mask.chunk < tokens) ||
         (mask.documents && context.documents.defined());
}

// Returns the pairs of blocks of a row of `tokens` tokens in which a query sees a key.
std::vector<BlockPair> pairs_of_row(const AttentionMask& mask, int64_t tokens, const MicrobatchContext& context) {
  const Spans spans = spans_of(mask.documents ? context.documents : at::Tensor(), mask.chunk, tokens);
  return visible_pairs(spans, mask.window, {{0, tokens}}, {{0, tokens}}, mask.causal);
}

at::Tensor attend_by_blocks(std::vector<BlockPair> pairs, const AttentionInput& input) {
  auto plan = c10::make_intrusive<BlockPlan>();
  plan->pairs = std::move(pairs);
  plan->scores = {.scale = input.scale, .softcap = input.softcap};
  plan->causal = input.mask.causal;
  return attend_by(std::move(plan), input);
}

}  // namespace

at::Tensor attend(const AttentionInput& input, const MicrobatchContext& context) {
  const int64_t tokens = input.q.size(2);
  TORCH_CHECK(input.k.size(2) == tokens && input.v.size(2) == tokens,
              "attention needs as many keys and values as queries, got ", tokens, " queries, ", input.k.size(2),
              " keys and ", input.v.size(2), " values");
  TORCH_CHECK(input.k.size(1) == input.v.size(1) && input.q.size(1) % input.k.size(1) == 0,
              "attention: the number of query heads (", input.q.size(1),
              ") must be a multiple of the number of key heads (", input.k.size(1),
              "), which must equal the number of value heads");
  input.mask.check();
  if (input.largest.defined()) {
    update_max_logits(input.q, input.k, pairs_of_row(input.mask, tokens, context), input.scale, input.largest);
  }
  // No fused kernel of this program caps scores.
  if (input.softcap > 0) return attend_by_blocks(pairs_of_row(input.mask, tokens, context), input);
  const bool hides = may_hide(input.mask, tokens, context);
  if (can_use_flash_attention(input.q, input.v.size(3)) && (hides || !fused_by_torch(input))) {
    const bool by_cudnn = !hides && can_use_cudnn_attention(input);
    return attend_by(by_cudnn ? cudnn_plan(input.scale, input.mask.causal) : flash_plan(input, context), input);
  }
  std::vector<BlockPair> pairs = pairs_of_row(input.mask, tokens, context);
  if (can_use_range_attention(input.q, input.v.size(3))) {
    auto plan = c10::make_intrusive<RangesPlan>();
    plan->visible = visible_keys(pairs, input.q.size(0), tokens);
    plan->scale = input.scale;
    plan->causal = input.mask.causal;
    return attend_by(std::move(plan), input);
  }
  const bool one_whole_block = pairs.size() == 1 && pairs[0].row == kAllRows && !pairs[0].band.cuts_before(tokens);
  if (one_whole_block && fused_by_torch(input)) {
    const bool grouped = input.q.size(1) != input.k.size(1);
    return at::scaled_dot_product_attention(input.q, input.k, input.v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                            /*is_causal=*/input.mask.causal, input.scale, grouped);
  }
  return attend_by_blocks(std::move(pairs), input);
}

namespace {

constexpr int64_t kMaxLogits = 1 << 24;
constexpr int64_t kMaxKeys = 1024;

at::Tensor tile_of(const at::Tensor& heads, int64_t row, int64_t begin, int64_t length, at::ScalarType type) {
  const at::Tensor tokens = heads.narrow(2, begin, length);
  return (row == kAllRows ? tokens : tokens.narrow(0, row, 1)).to(type);
}

// Returns the largest logits [H] of q [B, H, queries, D] and k [B, Hkv, keys, D]. The band counts from their first
// query and key.
at::Tensor largest_of_tile(const at::Tensor& q, const at::Tensor& k, const Band& band) {
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), kv_heads = k.size(1), keys = k.size(2);
  at::Tensor logits = at::matmul(q.reshape({batch, kv_heads, heads / kv_heads * queries, q.size(3)}), k.transpose(2, 3))
                          .view({batch, heads, queries, keys});
  if (band.cuts_before(queries) || band.cuts_after(keys)) {
    const at::Tensor seen = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(band.last).triu(band.first);
    logits.masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return logits.amax(at::IntArrayRef{0, 2, 3});
}

}  // namespace

void update_max_logits(const at::Tensor& q, const at::Tensor& k, const std::vector<BlockPair>& pairs, double scale,
                       at::Tensor largest) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(largest.dim() == 1 && largest.size(0) == q.size(1), "largest logits: got a tensor of ", largest.sizes(),
              ", need one number for each of ", q.size(1), " heads");
  const at::ScalarType type = accumulate_type(q.scalar_type());
  for (const BlockPair& pair : pairs) {
    const int64_t lines = (pair.row == kAllRows ? q.size(0) : 1) * q.size(1);
    const int64_t step = std::clamp<int64_t>(kMaxLogits / (lines * std::min(pair.keys, kMaxKeys)), 1, pair.queries);
    for (int64_t query = 0; query < pair.queries; query += step) {
      const int64_t queries = std::min(step, pair.queries - query);
      const at::Tensor some = tile_of(q, pair.row, pair.query + query, queries, type);
      // This loop visits all keys of the pair that these queries see.
      const int64_t end = std::min(pair.keys, query + queries + pair.band.last);
      for (int64_t key = std::max<int64_t>(0, query + pair.band.first); key < end; key += kMaxKeys) {
        const int64_t keys = std::min(kMaxKeys, end - key);
        const Band band{.first = pair.band.first + query - key, .last = pair.band.last + query - key};
        const at::Tensor seen = largest_of_tile(some, tile_of(k, pair.row, pair.key + key, keys, type), band);
        largest.copy_(at::maximum(largest, seen.to(largest.scalar_type()) * scale));
      }
    }
  }
}

}  // namespace titan::nn
