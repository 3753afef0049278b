#pragma once

// Memory layout of an optimizer's 8-bit states, for the optimizer and for estimates without LibTorch.

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace titan::memory {

// Consecutive elements of a row that share a scale. A row is the last dim. Blocks begin at multiples of this number
// within a row, so sharding by whole rows never splits one.
inline constexpr int64_t kStateBlock = 256;

// Whether a parameter of this shape, before any axis cuts it, has 8-bit states. Vectors (norms, biases) and parameters
// below 4,096 elements have full states: these have few bytes, and each element matters.
inline bool has_8bit_states(const std::vector<int64_t>& shape) {
  constexpr int64_t kLeast = 4096;
  return shape.size() > 1 && std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()) >= kLeast;
}

// Returns the number of blocks that overlap `columns` elements of a row, from element `first` of the whole row.
inline int64_t blocks_of_row(int64_t first, int64_t columns) {
  return columns == 0 ? 0 : (first % kStateBlock + columns + kStateBlock - 1) / kStateBlock;
}

// Return where the scales begin and how many bytes there are in one state of a piece [rows, columns]: a byte per
// element, then, aligned to 16 bytes, a float32 scale per block.
inline int64_t scales_offset(int64_t rows, int64_t columns) { return (rows * columns + 15) / 16 * 16; }
inline int64_t quantized_state_bytes(int64_t rows, int64_t first, int64_t columns) {
  return scales_offset(rows, columns) + rows * blocks_of_row(first, columns) * 4;
}

}  // namespace titan::memory
