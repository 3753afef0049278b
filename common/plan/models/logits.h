#pragma once

#include <algorithm>
#include <cstdint>

namespace titan::models {

// How many columns of a head's logits [tokens, columns] are computed at a time so that no more than `most_bytes` of
// them exist; 0 bytes: all. Parts are alike but for the last, and multiples of 64, and so at least 64, columns.
inline int64_t logit_columns(int64_t tokens, int64_t columns, int64_t element_bytes, int64_t most_bytes) {
  constexpr int64_t kMultiple = 64;
  const int64_t column = tokens * element_bytes;
  if (most_bytes == 0 || columns * column <= most_bytes) return columns;
  const int64_t most = std::max(most_bytes / column / kMultiple * kMultiple, kMultiple);
  const int64_t parts = (columns + most - 1) / most;
  const int64_t even = (columns + parts - 1) / parts;
  return std::min(columns, (even + kMultiple - 1) / kMultiple * kMultiple);
}

}  // namespace titan::models
