#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/nn/attention_core.h"

// Attention of one new token a row over the tokens before it, which a ring of slots keeps: the token at position p is
// in slot p modulo the ring's size.
namespace titan::generate {

// How many slots a row needs, when it grows to `tokens`: a window or a chunk never looks further back than its size.
int64_t ring_size(const nn::AttentionMask& mask, int64_t tokens);

// Which of the first `slots` slots of a ring of `ring` a row's newest token sees, its own included: bool [B, slots].
// `positions`: int64 [B], of the newest tokens. The mask's `documents` is not looked at: what is generated is one.
at::Tensor visible_slots(const at::Tensor& positions, int64_t ring, int64_t slots, const nn::AttentionMask& mask);

// q [B, H, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], visible bool [B, S]; sinks as in nn::AttentionInput: [B, H, Dv].
at::Tensor attend_slots(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible,
                        double scale, const at::Tensor& sinks);

// The same over latents, without growing keys and values out of them (arXiv 2405.04434, 2.1.2): the projection's rows
// of keys go into the queries, its rows of values into the result. q [B, H, nope + rope], latents [B, S, R], keys [B,
// S, rope], projection [H * (nope + Dv), R]: [B, H, Dv].
at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& keys,
                          const at::Tensor& projection, const at::Tensor& visible, double scale);

}  // namespace titan::generate
