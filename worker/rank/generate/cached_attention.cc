#include "worker/rank/generate/cached_attention.h"

#include <algorithm>
#include <limits>

#include "worker/rank/nn/layers.h"

namespace titan::generate {
namespace {

// Probabilities of products [B, ..., S], of the same type; a sink takes weight and has no value.
at::Tensor softmax_of(const at::Tensor& scores, double scale, const at::Tensor& visible, const at::Tensor& sinks) {
  at::Tensor seen = scores.to(nn::accumulate_type(scores.scalar_type())) * scale;
  seen = seen.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  if (!sinks.defined()) return at::softmax(seen, -1).to(scores.scalar_type());
  const at::Tensor sink = sinks.to(seen.scalar_type()).expand({seen.size(0), seen.size(1), seen.size(2), 1});
  const at::Tensor all = at::softmax(at::cat({seen, sink}, -1), -1);
  return all.narrow(-1, 0, seen.size(-1)).to(scores.scalar_type());
}

}  // namespace

int64_t ring_size(const nn::AttentionMask& mask, int64_t tokens) {
  if (mask.window > 0) tokens = std::min(tokens, mask.window);
  if (mask.chunk > 0) tokens = std::min(tokens, mask.chunk);
  return tokens;
}

at::Tensor visible_slots(const at::Tensor& positions, int64_t ring, int64_t slots, const nn::AttentionMask& mask) {
  const at::Tensor newest = positions.unsqueeze(1);                             // [B, 1]
  const at::Tensor slot = at::arange(slots, positions.options()).unsqueeze(0);  // [1, S]
  const at::Tensor held = newest - at::remainder(newest - slot, ring);          // The newest position of each slot.
  at::Tensor first = at::zeros_like(newest);
  if (mask.window > 0) first = at::maximum(first, newest - (mask.window - 1));
  if (mask.chunk > 0) first = at::maximum(first, newest - at::remainder(newest, mask.chunk));
  return held >= first;
}

at::Tensor attend_slots(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible,
                        double scale, const at::Tensor& sinks) {
  const int64_t rows = q.size(0), heads = q.size(1), shared = k.size(1);
  TORCH_CHECK(heads % shared == 0, heads, " query heads cannot share ", shared, " key heads");
  const at::Tensor grouped = q.reshape({rows, shared, heads / shared, q.size(2)});
  const at::Tensor scores = at::matmul(grouped, k.transpose(2, 3));  // [B, Hkv, H / Hkv, S]
  const at::Tensor sink = sinks.defined() ? sinks.view({1, shared, heads / shared, 1}) : sinks;
  const at::Tensor weights = softmax_of(scores, scale, visible.view({rows, 1, 1, -1}), sink);
  return at::matmul(weights, v).reshape({rows, heads, v.size(3)});
}

at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& keys,
                          const at::Tensor& projection, const at::Tensor& visible, double scale) {
  const int64_t heads = q.size(1), turned = keys.size(2), plain = q.size(2) - turned;
  const at::Tensor rows = projection.view({heads, -1, projection.size(1)});  // [H, nope + Dv, R]
  const at::Tensor into_keys = rows.narrow(1, 0, plain), into_values = rows.narrow(1, plain, rows.size(1) - plain);
  const at::Tensor plain_q = at::bmm(q.narrow(2, 0, plain).transpose(0, 1), into_keys).transpose(0, 1);  // [B, H, R]
  const at::Tensor scores = at::matmul(plain_q, latents.transpose(1, 2)) +
                            at::matmul(q.narrow(2, plain, turned), keys.transpose(1, 2));             // [B, H, S]
  const at::Tensor mixed = at::matmul(softmax_of(scores, scale, visible.unsqueeze(1), {}), latents);  // [B, H, R]
  return at::bmm(mixed.transpose(0, 1), into_values.transpose(1, 2)).transpose(0, 1);                 // [B, H, Dv]
}

}  // namespace titan::generate
