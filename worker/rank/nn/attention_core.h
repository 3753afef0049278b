#pragma once

// attend() computes softmax attention under a mask on the fastest path that accepts the tensors, and records each
// head's largest logit if requested.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/block.h"

namespace titan::nn {

// Selects the keys that a query sees: those of its token and earlier ones that meet all conditions, or those of any
// token that do.
struct AttentionMask {
  int64_t window = 0;      // Only the last `window` of them, its own included. 0: all.
  int64_t chunk = 0;       // Only those in its block of `chunk` positions. 0: all.
  bool documents = false;  // Only those of its document (MicrobatchContext::documents).
  bool causal = true;      // False: keys of later tokens too. Then there is no window.

  bool plain() const { return window == 0 && chunk == 0 && !documents && causal; }
  // Throws c10::Error if it is not causal and has a window.
  void check() const {
    TORCH_CHECK(causal || window == 0, "attention: a mask that is not causal cannot have a window");
  }
  bool operator==(const AttentionMask&) const = default;
};

// Queries, keys and values of the same tokens, at `context.positions`.
struct AttentionInput {
  at::Tensor q;  // [B, H, T, D]
  at::Tensor k;  // [B, Hkv, T, D]. Each head serves H / Hkv query heads.
  at::Tensor v;  // [B, Hkv, T, Dv]
  double scale = 0;
  double softcap =
      0;  // Scaled scores s become softcap * tanh(s / softcap) before the softmax (Gemma 2). 0: they do not.
  AttentionMask mask;
  at::Tensor sinks;    // [H], in compute dtype: logit of a key without value. Undefined: none.
  at::Tensor largest;  // float64 [H]: raised to each head's largest logit, before a softcap. Undefined: not computed.
};

// Computes softmax attention and returns [B, H, T, Dv]. A core need not update `largest`.
using AttentionCore = std::function<at::Tensor(const AttentionInput&, const MicrobatchContext&)>;
at::Tensor attend(const AttentionInput& input, const MicrobatchContext& context);

// Returns the pair in which every query of every row sees every key.
inline BlockPair unmasked_pair(int64_t queries, int64_t keys) {
  return {.queries = queries, .keys = keys, .band = {.first = -queries, .last = keys}};
}

// Raises `largest`, float64 [H], to the largest logit scale * q_i . k_j of each query head over the pairs that a query
// sees, in all rows of the batch. This is a separate pass, because most attention kernels keep no maximum. It is exact:
// products of float64 are in float64, others in fp32. It costs the first of attention's two products and holds at most
// 16 million logits at once (or those of one query and 1024 keys in every head and row). Autograd does not record it,
// and nothing waits for the device.
//   q [B, H, T, D], k [B, Hkv, S, D] with Hkv dividing H; scale > 0; `pairs` from visible_pairs() or unmasked_pair().
void update_max_logits(const at::Tensor& q, const at::Tensor& k, const std::vector<BlockPair>& pairs, double scale,
                       at::Tensor largest);

}  // namespace titan::nn
