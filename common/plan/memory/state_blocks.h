#pragma once

// How an optimizer's 8-bit states lie in memory: for who keeps them, and for who counts their bytes without LibTorch.

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace titan::memory {

// Neighbours of a row that share a scale. A row is the last dim; blocks begin at its multiples, so that no way to share
// out whole rows cuts one.
inline constexpr int64_t kStateBlock = 256;

// Whether a parameter of this shape, before any axis cuts it, has 8-bit states. Vectors (norms, biases) and what is
// below 4,096 numbers keep whole ones: they are few bytes, and each of their numbers counts for much.
inline bool has_codes(const std::vector<int64_t>& shape) {
  constexpr int64_t kLeast = 4096;
  return shape.size() > 1 && std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()) >= kLeast;
}

// Blocks that meet `columns` numbers of a row, of which the first is number `first` of the whole row.
inline int64_t blocks_of_row(int64_t first, int64_t columns) {
  return columns == 0 ? 0 : (first % kStateBlock + columns + kStateBlock - 1) / kStateBlock;
}

// Of one state of a piece [rows, columns]: a byte a number, then a float32 scale a block. The scales begin at
// scales_offset().
inline int64_t scales_offset(int64_t rows, int64_t columns) { return (rows * columns + 15) / 16 * 16; }
inline int64_t code_bytes(int64_t rows, int64_t first, int64_t columns) {
  return scales_offset(rows, columns) + rows * blocks_of_row(first, columns) * 4;
}

}  // namespace titan::memory
