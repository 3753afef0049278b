#pragma once

#include <ATen/ATen.h>

#include <functional>

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
  at::Tensor largest;  // [H], float64: grows to each head's largest logit (largest_logits.h); undefined: nobody asks.
};

// Causal softmax attention: [B, H, T, Dv]. A core that ignores `largest` leaves it as it was.
using AttentionCore = std::function<at::Tensor(const AttentionInput&, const MicrobatchContext&)>;
at::Tensor attend(const AttentionInput& input, const MicrobatchContext& context);

}  // namespace titan::nn
