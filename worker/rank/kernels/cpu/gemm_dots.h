#pragma once

#include "worker/rank/kernels/cpu/gemm_operand.h"

// Inner product for levels that multiply pairs of bf16. Operands stay bf16, packed so that the two of a pair are
// neighbours in depth. A strip of rows is multiplied by a panel of columns in registers.
namespace titan::kernels::TITAN_LEVEL {
namespace {

using Packed = uint16_t;
constexpr int64_t kStrip = 12;  // Rows. With two vectors of columns each, three quarters of AVX-512's registers.
constexpr int64_t kPanel = 2 * kLanes;
constexpr int64_t kPanelsAtOnce = 1;
constexpr int64_t kPanelsPacked = 1;
constexpr int64_t kStripsPerBlock = 20;
constexpr int64_t kBlockDepth = 1024;
constexpr int64_t kDepthUnit = 2;

class TileSession {};  // Sets up nothing.

// Adds the products of a's and b's pairs to `sum`.
TITAN_INLINE Floats add_dots(Floats sum, Ints a, Ints b) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
  return fma(odd_of(a), odd_of(b), fma(even_of(a), even_of(b), sum));
#endif
}

// Copies a pair to all lanes.
TITAN_INLINE Ints splat_pair(const uint16_t* pair) {
  int32_t bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
#if defined(__AVX512F__)
  return _mm512_set1_epi32(bits);
#else
  return _mm256_set1_epi32(bits);
#endif
}

// Packs rows of depth into to[depth / 2][unit] pairs. Positions past `count` get arbitrary numbers. Packs eight rows
// and sixteen numbers of depth at a time: an expert has few rows per packed weight, so packing numbers one by one would
// take as long as the product.
template <int64_t unit>
void pack_wide(const uint16_t* rows, int64_t stride, int64_t count, int64_t depth, uint16_t* to) {
  static_assert(unit % 4 == 0);
  const int64_t whole = depth / 16 * 16;
  for (int64_t first = 0; first < count && whole > 0; first += 8) {
    for (int64_t k = 0; k < whole; k += 16) {
      const auto row = [=](int64_t i) {
        const int64_t place = first + i < count ? first + i : count - 1;  // Nothing is read past the last row.
        return _mm256_loadu_ps(reinterpret_cast<const float*>(rows + place * stride + k));
      };
      __m256 columns[8];
      transpose_eight(row, columns);
      float* const out = reinterpret_cast<float*>(to + k * unit + 2 * first);
#pragma GCC unroll 8
      for (int64_t j = 0; j < 8; ++j) {
        if (unit - first >= 8) {
          _mm256_storeu_ps(out + j * unit, columns[j]);
        } else {
          _mm_storeu_ps(out + j * unit, _mm256_castps256_ps128(columns[j]));
        }
      }
    }
  }
  for (int64_t k = whole; k < depth; k += 2) {
    for (int64_t i = 0; i < count; ++i) {
      to[k * unit + 2 * i] = rows[i * stride + k];
      to[k * unit + 2 * i + 1] = k + 1 < depth ? rows[i * stride + k + 1] : 0;
    }
  }
}

// Packs the same from rows that each hold one depth of all positions.
template <int64_t unit>
void pack_deep(const uint16_t* row, int64_t stride, int64_t count, int64_t depth, uint16_t* to) {
  for (int64_t k = 0; k < depth; k += 2, row += 2 * stride, to += 2 * unit) {
    const bool pair = k + 1 < depth;
    for_vectors(count, [=](int64_t i, auto lanes) {
      const Floats even = load(row + i, lanes), odd = pair ? load(row + stride + i, lanes) : splat(0);
      store_pairs(to + 2 * i, narrow_pairs_of(even, odd), lanes);
    });
  }
}

template <int64_t unit>
void pack(const Operand& from, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  const int64_t padded = (depth + 1) / 2 * 2;
  for (int64_t i = 0; i < count; i += unit, to += unit * padded) {
    const int64_t here = count - i < unit ? count - i : unit, place = first + i;
    if (from.deep) {
      pack_deep<unit>(from.data + first_depth * from.stride + place, from.stride, here, depth, to);
    } else {
      pack_wide<unit>(from.data + place * from.stride + first_depth, from.stride, here, depth, to);
    }
  }
}
// Packs strips, or panels, of `count` positions, one after the other.
void pack_strips(const Operand& a, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  pack<kStrip>(a, first, count, first_depth, depth, to);
}
void pack_panels_of(const Operand& b, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  pack<kPanel>(b, first, count, first_depth, depth, to);
}

// Prefetches nothing: multiplying a panel takes longer than loading the next one.
struct PanelPrefetch {
  PanelPrefetch(const uint16_t*, int64_t) {}
};

// sums [strip][panel] (+)= strip times panel. There is only one panel.
void multiply(const uint16_t* strip, const uint16_t* panel, int64_t, int64_t, int64_t depth, float* sums, bool add,
              const PanelPrefetch&) {
  Floats own[kStrip][2];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kStrip; ++i) own[i][0] = own[i][1] = splat(0);
  for (int64_t k = 0; k < depth; k += 2, strip += 2 * kStrip, panel += 2 * kPanel) {
    const Ints left = load_pairs(panel, All{}), right = load_pairs(panel + kPanel, All{});
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStrip; ++i) {
      const Ints a = splat_pair(strip + 2 * i);
      own[i][0] = add_dots(own[i][0], a, left);
      own[i][1] = add_dots(own[i][1], a, right);
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < kStrip; ++i, sums += kPanel) {
    store(sums, add ? load(sums, All{}) + own[i][0] : own[i][0], All{});
    store(sums + kLanes, add ? load(sums + kLanes, All{}) + own[i][1] : own[i][1], All{});
  }
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
