#pragma once

#include <cstdint>

#include "worker/rank/kernels/cpu/attention.h"

// A model's masks as what they come down to: each query sees one range of keys.
namespace titan::kernels {

// All that are set hold together. Positions are those of the whole row, of which a call may have pieces.
struct AttentionMask {
  bool causal = true;                        // No later key.
  int64_t window = 0;                        // Not farther back than the last `window` keys, its own included; 0: any.
  int64_t chunk = 0;                         // Only keys of its own block of `chunk` positions; 0: any.
  const int64_t* document_starts = nullptr;  // Ascending from 0: only keys of its own document.
  int64_t documents = 0;                     // 0: one document.
};

// For the queries at [first_query, first_query + queries) and the keys at [first_key, first_key + keys) of one row.
void visible_keys(const AttentionMask& mask, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys,
                  KeyRange* visible);

}  // namespace titan::kernels
