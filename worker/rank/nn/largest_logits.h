#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "worker/rank/nn/attention_pairs.h"

namespace titan::nn {

// Raises `largest` [H], float64, to the largest logit scale * q_i . k_j of each query head over the pairs that a query
// sees, all rows of the batch together. A pass of its own, since most kernels of attention keep no maximum; exact:
// products of float64 are in it, of other types in fp32. Costs the first of attention's two products and holds at most
// 16 million logits at once (or those of one query and 1024 keys in every head and row). Below autograd; nothing waits
// for the device.
//   q [B, H, T, D], k [B, Hkv, S, D] with Hkv dividing H; scale > 0; `pairs` as visible_pairs() gives them.
void note_largest_logits(const at::Tensor& q, const at::Tensor& k, const std::vector<BlockPair>& pairs, double scale,
                         at::Tensor largest);

}  // namespace titan::nn
