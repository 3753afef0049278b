#pragma once

// Softmax attention of bf16 heads, forward and backward, without scores in memory (FlashAttention, arXiv 2205.14135 and
// 2307.08691). Each query sees one range of keys, which visible_keys() derives from a model's masks.
//
// Sums are fp32. The tiles of kAmx multiply probabilities and their gradients as bf16, and flush denormals of bf16 and
// fp32 to zero. Every query and key is processed in one fixed order, so the result depends on the level but never on
// the number of threads. Infinities and NaN that a query sees make its own results NaN. Those in keys that the query
// does not see may do so too, if both are in one block.
//
// Root mean square errors against exact attention of the same bf16 inputs, relative to the exact results
// (attention_test.cc): 2.3e-3 for o and the gradients, at kAmx 2.5e-3 for o and 6e-3 for the gradients. Gradients are
// compared for the given o. The absolute error of lse is 2e-4.

#include <cstdint>

#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Keys [begin, end) of a row. An empty range sees nothing.
struct KeyRange {
  int32_t begin = 0, end = 0;
};

// bf16 numbers in memory: [batch, tokens, heads, size], with the first three dimensions in any order.
template <typename T>
struct BasicHeads {
  T* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;  // Strides in elements. The last dimension is contiguous.
};
using Heads = BasicHeads<const uint16_t>;
using HeadsOut = BasicHeads<uint16_t>;

struct AttentionShape {
  int64_t batch = 0;
  int64_t heads = 0, kv_heads = 0;  // Head h uses the keys and values of head h / (heads / kv_heads).
  int64_t queries = 0, keys = 0;    // In tokens.
  int64_t size = 0, v_size = 0;     // Head sizes of q and k, and of v and o: 1 to 256.
  float scale = 0;                  // Factor of the scores, not negative.
  // [batch, queries], or [queries] for all rows: query i of row b sees visible[b * visible_stride + i]. A stride of 0
  // means that all rows see the same. Every mask of a model has this form.
  const KeyRange* visible = nullptr;
  int64_t visible_stride = 0;
  // [heads] or null: logit of one more key, which every query sees and which has no value.
  const float* sinks = nullptr;
  int threads = 1;
};

struct AttentionForward {
  AttentionShape shape;
  // q [batch, queries, heads, size], k [batch, keys, kv_heads, size], v [batch, keys, kv_heads, v_size].
  Heads q, k, v;
  HeadsOut o;  // [batch, queries, heads, v_size]; zero where a query sees no key.
  // [batch, heads, queries]: log of the sum of exp(scores), sinks included; -inf if no key is seen.
  float* lse = nullptr;
};

// Takes q, k, v, o and lse of the forward pass. For a piece of a longer row, o and lse are those of the whole row, and
// the results are the piece's share of the gradients.
struct AttentionBackward {
  AttentionShape shape;
  Heads q, k, v, o, grad_o;
  const float* lse = nullptr;       // [batch, heads, queries], from the forward pass.
  const float* delta = nullptr;     // [batch, heads, queries]: sum of grad_o * o over a head. Null: computed from o.
  HeadsOut grad_q, grad_k, grad_v;  // Shapes of q, k and v.
  float* grad_sinks = nullptr;      // [heads]. Null: not wanted.
};

// Return false, and write nothing, if this machine lacks the level, arguments are missing or out of range, or memory
// runs out.
bool attention_forward(Level level, const AttentionForward& args);
bool attention_backward(Level level, const AttentionBackward& args);

// A model's masks, which reduce to one range of keys per query. All that are set apply together. Positions are those of
// the whole row, of which a call may have pieces.
struct KeyRangeMask {
  bool causal = true;                        // Hides later keys.
  int64_t window = 0;                        // Shows only the last `window` keys, the query's own included. 0: all.
  int64_t chunk = 0;                         // Shows only keys in the query's block of `chunk` positions. 0: all.
  const int64_t* document_starts = nullptr;  // [documents], ascending from 0: shows only keys of the query's document.
  int64_t documents = 0;                     // 0: one document.
};

// Writes the ranges [queries] that the queries at [first_query, first_query + queries) see of the keys at [first_key,
// first_key + keys) of one row.
void visible_keys(const KeyRangeMask& mask, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys,
                  KeyRange* visible);

}  // namespace titan::kernels
