#pragma once

// attend() computes causal softmax attention under a mask by the fastest path that takes the tensors, and notes each
// head's largest logit where it is asked for.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/block.h"

namespace titan::nn {

// Which of the earlier keys (and its own) a query sees.
struct AttentionMask {
  int64_t window = 0;      // Only the last `window` of them, its own included; 0: all.
  int64_t chunk = 0;       // Only those of its block of `chunk` positions; 0: all.
  bool documents = false;  // Only those of its own document (MicrobatchContext::documents).

  bool plain() const { return window == 0 && chunk == 0 && !documents; }
  bool operator==(const AttentionMask&) const = default;
};

// Queries, keys and values of the same tokens: those of `context.positions`.
struct AttentionInput {
  at::Tensor q;  // [B, H, T, D]
  at::Tensor k;  // [B, Hkv, T, D]; each head serves H / Hkv query heads.
  at::Tensor v;  // [B, Hkv, T, Dv]
  double scale = 0;
  AttentionMask mask;
  at::Tensor sinks;    // [H], in compute dtype: the logit of a key without value; undefined: none.
  at::Tensor largest;  // [H], float64: grows to each head's largest logit; undefined: nobody asks.
};

// Causal softmax attention: [B, H, T, Dv]. A core that ignores `largest` leaves it as it was.
using AttentionCore = std::function<at::Tensor(const AttentionInput&, const MicrobatchContext&)>;
at::Tensor attend(const AttentionInput& input, const MicrobatchContext& context);

// Raises `largest` [H], float64, to the largest logit scale * q_i . k_j of each query head over the pairs that a query
// sees, all rows of the batch together. A pass of its own, since most kernels of attention keep no maximum; exact:
// products of float64 are in it, of other types in fp32. Costs the first of attention's two products and holds at most
// 16 million logits at once (or those of one query and 1024 keys in every head and row). Below autograd; nothing waits
// for the device.
//   q [B, H, T, D], k [B, Hkv, S, D] with Hkv dividing H; scale > 0; `pairs` as visible_pairs() gives them.
void note_largest_logits(const at::Tensor& q, const at::Tensor& k, const std::vector<BlockPair>& pairs, double scale,
                         at::Tensor largest);

}  // namespace titan::nn
