#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace titan::images {

// For each pixel of a stretch of a resized axis: the pixels of the original that it is a weighted sum of.
template <typename Weight>
struct Taps {
  std::vector<int> first;       // The first of these pixels.
  std::vector<int> count;       // Their number, at least 1.
  std::vector<Weight> weights;  // [first.size(), stride]
  size_t stride = 0;            // At least the largest count.

  // All pixels of the original that are used: [begin(), end()).
  int begin() const { return first.front(); }
  int end() const { return first.back() + count.back(); }
};

constexpr int kWeightBits = 22;  // Integer weights are multiples of 2^-22; a sum of them and bytes fits into 32 bits.

// Returns the bicubic weights of the pixels [begin, begin + size) of an axis that is resized from `from` to `to`
// pixels.
Taps<double> bicubic_taps(int from, int to, int begin, int size);
// The same, rounded to multiples of 2^-22, halves away from zero.
Taps<int32_t> bicubic_integer_taps(int from, int to, int begin, int size);

// Returns the pixels of the original that Pillow's nearest neighbour takes for [begin, begin + size).
std::vector<int> nearest_pixels(int from, int to, int begin, int size);

}  // namespace titan::images
