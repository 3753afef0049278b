#pragma once

// Describes a factor of a product and transposes its elements, eight by eight, into columns of a panel.

#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/simd.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

// A factor of a product. Its elements have an outer position (a row or column of the result) and a depth, over which
// the product sums. It is [outer, depth], or if deep [depth, outer].
struct Operand {
  const uint16_t* data;
  int64_t stride;
  bool deep;
};

// columns[k] = element k of row(0) to row(7), each a vector of eight elements of 32 bits.
template <typename Row>
TITAN_INLINE void transpose_eight(const Row& row, __m256 columns[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int64_t i = 0; i < 8; i += 2) {
    const __m256 first = row(i), second = row(i + 1);
    pairs[i] = _mm256_unpacklo_ps(first, second);
    pairs[i + 1] = _mm256_unpackhi_ps(first, second);
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < 4; ++k) {
    columns[k] = _mm256_permute2f128_ps(fours[k], fours[k + 4], 0x20);
    columns[k + 4] = _mm256_permute2f128_ps(fours[k], fours[k + 4], 0x31);
  }
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
