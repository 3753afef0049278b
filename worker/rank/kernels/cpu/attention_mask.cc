#include "worker/rank/kernels/cpu/attention_mask.h"

#include <algorithm>
#include <limits>

namespace titan::kernels {

void visible_keys(const AttentionMask& mask, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys,
                  KeyRange* visible) {
  const int64_t* const starts = mask.document_starts;
  const int64_t* const starts_end = starts + mask.documents;
  const int64_t* next_start = std::upper_bound(starts, starts_end, first_query);
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t position = first_query + i;
    int64_t begin = 0;
    int64_t end = mask.causal ? position + 1 : std::numeric_limits<int64_t>::max();
    while (next_start != starts_end && *next_start <= position) ++next_start;
    if (next_start != starts) begin = next_start[-1];
    if (next_start != starts_end) end = std::min(end, *next_start);
    if (mask.window > 0) begin = std::max(begin, position - mask.window + 1);
    if (mask.chunk > 0) {
      const int64_t chunk_begin = position - position % mask.chunk;
      begin = std::max(begin, chunk_begin);
      end = std::min(end, chunk_begin + mask.chunk);
    }
    begin = std::clamp(begin - first_key, int64_t{0}, keys);
    end = std::clamp(end - first_key, begin, std::max(begin, keys));
    visible[i] = {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
  }
}

}  // namespace titan::kernels
