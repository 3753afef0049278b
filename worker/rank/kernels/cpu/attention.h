#pragma once

// Softmax attention of bf16 heads, both passes, without scores in memory (FlashAttention, arXiv 2205.14135 and
// 2307.08691). Each query sees one range of keys, which visible_keys() finds from a model's masks.
//
// Sums are fp32; the tiles of kAmx take probabilities and their gradients as bf16, and flush denormals of either kind
// to zero. Every query and every key is worked on in one fixed order: the result depends on the level, never on the
// number of threads. What a query sees of infinities and NaN makes its own results NaN; in keys that it does not see
// they may do so too, where the two lie within one block.
//
// Error against exact attention of the same bf16 inputs, as the root of the mean square relative to the exact one's
// (attention_test.cc): o 2.3e-3 and gradients 2.3e-3, at kAmx 2.5e-3 and 6e-3, gradients for the o that is given; lse
// 2e-4, absolute.

#include <cstdint>

#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Keys [begin, end) of a row; empty ones see nothing.
struct KeyRange {
  int32_t begin = 0, end = 0;
};

// bf16 numbers as they lie in memory, [batch, tokens, heads, size] in any order of the first three.
template <typename T>
struct BasicHeads {
  T* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;  // Strides, in elements; neighbours of the last dimension are neighbours.
};
using Heads = BasicHeads<const uint16_t>;
using HeadsOut = BasicHeads<uint16_t>;

struct AttentionShape {
  int64_t batch = 0;
  int64_t heads = 0, kv_heads = 0;  // Head h uses the keys and values of head h / (heads / kv_heads).
  int64_t queries = 0, keys = 0;    // Tokens.
  int64_t size = 0, v_size = 0;     // Of a head of q and k, and of v and o: 1 to 256.
  float scale = 0;                  // Of the scores; not negative.
  // What query i of row b sees: visible[b * visible_stride + i]. Stride 0: all rows see alike. Every mask of a model is
  // of this kind.
  const KeyRange* visible = nullptr;
  int64_t visible_stride = 0;
  // [heads] or null: the logit of one more key, which every query sees and which has no value.
  const float* sinks = nullptr;
  int threads = 1;
};

struct AttentionForward {
  AttentionShape shape;
  Heads q, k, v;
  HeadsOut o;            // Zero where a query sees no key.
  float* lse = nullptr;  // [batch, heads, queries]: log of the sum of exp(scores), sinks included; -inf: nothing seen.
};

// Saved for it: q, k, v, o, lse. For a piece of a longer row they are the whole row's o and lse, and what comes out is
// the piece's share of the gradients.
struct AttentionBackward {
  AttentionShape shape;
  Heads q, k, v, o, grad_o;
  const float* lse = nullptr;    // As from the forward pass.
  const float* delta = nullptr;  // [batch, heads, queries]: sum of grad_o * o over a head; null: computed from o.
  HeadsOut grad_q, grad_k, grad_v;
  float* grad_sinks = nullptr;  // [heads]; null: not wanted.
};

// False: declined, and nothing written (no such level here, sizes out of range, no memory).
bool attention_forward(Level level, const AttentionForward& args);
bool attention_backward(Level level, const AttentionBackward& args);

// A model's masks, which come down to one range of keys for each query. All that are set hold together. Positions are
// those of the whole row, of which a call may have pieces.
struct AttentionMask {
  bool causal = true;                        // No later key.
  int64_t window = 0;                        // Not farther back than the last `window` keys, its own included; 0: any.
  int64_t chunk = 0;                         // Only keys of its own block of `chunk` positions; 0: any.
  const int64_t* document_starts = nullptr;  // Ascending from 0: only keys of its own document.
  int64_t documents = 0;                     // 0: one document.
};

// The ranges that the queries at [first_query, first_query + queries) see of the keys at [first_key, first_key + keys)
// of one row.
void visible_keys(const AttentionMask& mask, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys,
                  KeyRange* visible);

}  // namespace titan::kernels
