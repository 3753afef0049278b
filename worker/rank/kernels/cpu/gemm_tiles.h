#pragma once

#include <string.h>

#include "worker/rank/kernels/cpu/gemm_operand.h"
#if !defined(TITAN_EMULATED_TILES)
#include "worker/rank/kernels/cpu/tiles.h"
#endif

// Inner product for AMX: two tiles of rows times two of columns, packed so that a tile is one contiguous KiB.
namespace titan::kernels::TITAN_LEVEL {
namespace {

using Packed = uint16_t;
constexpr int64_t kStrip = 32;
constexpr int64_t kPanel = 32;
constexpr int64_t kPanelsAtOnce = 2;
constexpr int64_t kPanelsPacked = 8;  // Packed together, so that neighbours in a row of depth are read together.
constexpr int64_t kStripsPerBlock = 8;
constexpr int64_t kBlockDepth = 1024;
constexpr int64_t kStepDepth = 256;
constexpr int64_t kDepthUnit = 32;  // Depth of a tile.
constexpr int64_t kTile = 512;      // Elements of a tile.
constexpr int64_t kSumsStride = kPanel * kPanelsAtOnce;

// Transposes 16 vectors of 16 pairs of bf16: lane j of vectors[i] becomes lane i of vectors[j].
void transpose(__m512i vectors[16]) {
  __m512i two[16], four[16];
  for (int i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_epi32(vectors[i], vectors[i + 1]);
    two[i + 1] = _mm512_unpackhi_epi32(vectors[i], vectors[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      four[i + 2 * j] = _mm512_unpacklo_epi64(two[i + j], two[i + j + 2]);
      four[i + 2 * j + 1] = _mm512_unpackhi_epi64(two[i + j], two[i + j + 2]);
    }
  }
  // four[4 q + j] holds lanes j, 4 + j, 8 + j, 12 + j of vectors 4 q to 4 q + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(four[j], four[4 + j], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(four[j], four[4 + j], 0xDD);
    const __m512i high = _mm512_shuffle_i32x4(four[8 + j], four[12 + j], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(four[8 + j], four[12 + j], 0xDD);
    vectors[j] = _mm512_shuffle_i32x4(low, high, 0x88);
    vectors[4 + j] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    vectors[8 + j] = _mm512_shuffle_i32x4(low, high, 0xDD);
    vectors[12 + j] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
  }
}

TITAN_INLINE __m512i load_some(const uint16_t* from, int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1U << (count < 0 ? 0 : count)) - 1), from);
}

// Two tiles, of the outer positions 0 to 15 and 16 to 31. Vector i of a tile has 32 of depth of position i, or with
// `by_pairs` its lane j has the pair of depths 2 i, 2 i + 1 of position j.
using Square = __m512i[2][16];

TITAN_INLINE void store_square(const Square& square, uint16_t* to) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    _mm512_store_si512(to + 32 * i, square[0][i]);
    _mm512_store_si512(to + kTile + 32 * i, square[1][i]);
  }
}

// Packs 32 positions from rows that each hold one depth. Positions >= `count` and depths >= `depth` are 0.
TITAN_INLINE void pack_deep(const uint16_t* from, int64_t stride, int64_t count, int64_t depth, bool by_pairs,
                            uint16_t* to) {
  alignas(64) static constexpr uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  Square square;
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i, from += 2 * stride) {
    const __m512i even = 2 * i < depth ? load_some(from, count) : _mm512_setzero_si512();
    const __m512i odd = 2 * i + 1 < depth ? load_some(from + stride, count) : _mm512_setzero_si512();
    square[0][i] = _mm512_permutex2var_epi16(even, low, odd);
    square[1][i] = _mm512_permutex2var_epi16(even, high, odd);
  }
  if (!by_pairs) {
    transpose(square[0]);
    transpose(square[1]);
  }
  store_square(square, to);
}

// Packs 32 of depth from rows that each hold one position.
TITAN_INLINE void pack_wide(const uint16_t* from, int64_t stride, int64_t count, int64_t depth, bool by_pairs,
                            uint16_t* to) {
  Square square;
#pragma GCC unroll 2
  for (int64_t half = 0; half < 2; ++half) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i, from += stride) {
      square[half][i] = half * 16 + i < count ? load_some(from, depth) : _mm512_setzero_si512();
    }
    if (by_pairs) transpose(square[half]);
  }
  store_square(square, to);
}

// Packs squares of 32 positions from `first` on, one after the other, each with its whole depth. Each 32 of depth have
// the tile of the first 16 positions, then that of the others.
void pack(const Operand& from, int64_t first, int64_t count, int64_t first_depth, int64_t depth, bool by_pairs,
          uint16_t* to) {
  const int64_t squares = (count + 31) / 32, padded_depth = (depth + kDepthUnit - 1) / kDepthUnit * kDepthUnit;
  const int64_t size = 32 * padded_depth;
  if (from.deep) {  // Reads a whole row of depth before the next.
    for (int64_t k = 0; k < depth; k += kDepthUnit) {
      const uint16_t* rows = from.data + (first_depth + k) * from.stride + first;
      for (int64_t i = 0; i < squares; ++i) {
        pack_deep(rows + 32 * i, from.stride, count - 32 * i, depth - k, by_pairs, to + i * size + 32 * k);
      }
    }
    return;
  }
  for (int64_t i = 0; i < squares; ++i) {
    const uint16_t* rows = from.data + (first + 32 * i) * from.stride + first_depth;
    for (int64_t k = 0; k < depth; k += kDepthUnit) {
      pack_wide(rows + k, from.stride, count - 32 * i, depth - k, by_pairs, to + i * size + 32 * k);
    }
  }
}
// Packs strips, or panels, of `count` positions, one after the other.
void pack_strips(const Operand& a, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  pack(a, first, count, first_depth, depth, false, to);
}
void pack_panels_of(const Operand& b, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  pack(b, first, count, first_depth, depth, true, to);
}

// Tiles 0 to 3 hold the sums, a quarter each.
TITAN_INLINE void load_sums(const float* c) {
  tile_load<0>(c, kSumsStride * 4);
  tile_load<1>(c + 16, kSumsStride * 4);
  tile_load<2>(c + 16 * kSumsStride, kSumsStride * 4);
  tile_load<3>(c + 16 * kSumsStride + 16, kSumsStride * 4);
}
TITAN_INLINE void store_sums(float* c) {
  tile_store<0>(c, kSumsStride * 4);
  tile_store<1>(c + 16, kSumsStride * 4);
  tile_store<2>(c + 16 * kSumsStride, kSumsStride * 4);
  tile_store<3>(c + 16 * kSumsStride + 16, kSumsStride * 4);
}

// Prefetches the next panels into the L2 cache while `strips` strips are multiplied by the current ones. A core does
// not look far enough ahead to hide the latency of L3.
class PanelPrefetch {
 public:
  PanelPrefetch(const uint16_t* panels, int64_t strips)
      : at_(reinterpret_cast<const char*>(panels)), lines_((kLines + strips - 1) / strips) {}

  TITAN_INLINE void fetch() {
    for (int64_t i = 0; i < lines_; ++i, at_ += 64) _mm_prefetch(at_, _MM_HINT_T1);
  }

 private:
  static constexpr int64_t kLines = 2 * kTile * sizeof(uint16_t) / 64;  // Lines of a panel per 32 of its depth.

  const char* at_;
  const int64_t lines_;  // Lines to fetch per 32 of depth of a panel.
};

// sums [strip][panel] (+)= strip times panel.
TITAN_INLINE void multiply_step(const uint16_t* strip, const uint16_t* panel, int64_t depth, float* sums, bool add,
                                PanelPrefetch& ahead) {
  if (add) {
    load_sums(sums);
  } else {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int64_t k = 0; k < depth; k += kDepthUnit, strip += 2 * kTile, panel += 2 * kTile) {
    ahead.fetch();
    tile_load<4>(strip, 64);
    tile_load<6>(panel, 64);
    tile_multiply<0, 4, 6>();
    tile_load<7>(panel + kTile, 64);
    tile_multiply<1, 4, 7>();
    tile_load<5>(strip + kTile, 64);
    tile_multiply<2, 5, 6>();
    tile_multiply<3, 5, 7>();
  }
  store_sums(sums);
}

// sums (+)= strip times `count` panels, `panel_size` apart. depth is a multiple of 32. The L1 cache holds a step's
// strip, one of its panels and the sums, so that each step reads only its panels from further away.
void multiply(const uint16_t* strip, const uint16_t* panels, int64_t panel_size, int64_t count, int64_t depth,
              float* sums, bool add, PanelPrefetch& ahead) {
  for (int64_t done = 0; done == 0 || done < depth; done += kStepDepth) {  // Without depth the sums are 0.
    const int64_t step = depth - done < kStepDepth ? depth - done : kStepDepth;
    for (int64_t i = 0; i < count; ++i) {
      multiply_step(strip + done * kStrip, panels + i * panel_size + done * kPanel, step, sums + i * kPanel,
                    add || done > 0, ahead);
    }
  }
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
