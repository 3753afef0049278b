#pragma once

#include <string.h>

#include "worker/kernels/cpu/gemm_operand.h"
#include "worker/kernels/cpu/tiles.h"

// The inner product for AMX: two tiles of rows times two of columns, packed so that a tile is 1 KiB in one piece.
namespace titan::kernels::TITAN_LEVEL {
namespace {

using Packed = uint16_t;
constexpr int64_t kStrip = 32;
constexpr int64_t kPanel = 32;
constexpr int64_t kStripsPerBlock = 4;
constexpr int64_t kBlockDepth = 512;
constexpr int64_t kDepthUnit = 32;  // Of one tile.
constexpr int64_t kTile = 512;      // Elements.

// 16 vectors of 16 pairs of bf16: vectors[i] lane j becomes vectors[j] lane i.
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

// One tile of an operand from (first, first_depth) on, 0 past `count` outer places and `depth`: vectors[i] lane j holds
// the pair of depths 2 j, 2 j + 1 at outer place i, or with `pairs_by_row` of depths 2 i, 2 i + 1 at place j.
void gather_tile(const Operand& from, int64_t first, int64_t count, int64_t first_depth, int64_t depth,
                 bool pairs_by_row, __m512i vectors[16]) {
  if (!from.deep) {
    for (int64_t i = 0; i < 16; ++i) {
      const uint16_t* row = from.data + (first + i) * from.stride + first_depth;
      vectors[i] = i < count ? load_some(row, depth) : _mm512_setzero_si512();
    }
  } else {
    for (int64_t i = 0; i < 16; ++i) {  // Two rows of depth, interleaved.
      const uint16_t* row = from.data + (first_depth + 2 * i) * from.stride + first;
      const int64_t places = count < 16 ? count : 16;
      const __m512i even = 2 * i < depth ? load_some(row, places) : _mm512_setzero_si512();
      const __m512i odd = 2 * i + 1 < depth ? load_some(row + from.stride, places) : _mm512_setzero_si512();
      vectors[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(even)),
                                   _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(odd)), 16));
    }
  }
  if (from.deep != pairs_by_row) transpose(vectors);
}

// For each 32 of depth: the tile of the first 16 places, that of the others.
void pack(const Operand& from, int64_t first, int64_t count, int64_t first_depth, int64_t depth, bool pairs_by_row,
          uint16_t* to) {
  __m512i vectors[16];
  for (int64_t k = 0; k < depth; k += kDepthUnit) {
    for (int64_t half = 0; half < 32; half += 16, to += kTile) {
      gather_tile(from, first + half, count - half, first_depth + k, depth - k, pairs_by_row, vectors);
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + 32 * i, vectors[i]);
    }
  }
}
void pack_strip(const Operand& a, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  pack(a, first, count, first_depth, depth, false, to);
}
void pack_panel(const Operand& b, int64_t first, int64_t count, int64_t first_depth, int64_t depth, uint16_t* to) {
  pack(b, first, count, first_depth, depth, true, to);
}

// Tiles 0 to 3 are the sums, c's quarters.
TITAN_INLINE void load_sums(const float* c, int64_t stride) {
  tile_load<0>(c, stride * 4);
  tile_load<1>(c + 16, stride * 4);
  tile_load<2>(c + 16 * stride, stride * 4);
  tile_load<3>(c + 16 * stride + 16, stride * 4);
}
TITAN_INLINE void store_sums(float* c, int64_t stride) {
  tile_store<0>(c, stride * 4);
  tile_store<1>(c + 16, stride * 4);
  tile_store<2>(c + 16 * stride, stride * 4);
  tile_store<3>(c + 16 * stride + 16, stride * 4);
}

// The rows and columns of c that exist, from or to a whole square.
void copy_square(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    for_vectors(columns, [=](int64_t j, auto lanes) {
      store(to + i * to_stride + j, load(from + i * from_stride + j, lanes), lanes);
    });
  }
}

// c [rows, columns] (+)= strip times panel; depth is a multiple of 32.
void multiply(const uint16_t* strip, const uint16_t* panel, int64_t depth, float* c, int64_t stride, int64_t rows,
              int64_t columns, bool add) {
  alignas(64) float square[kStrip * kPanel];
  const bool whole = rows == kStrip && columns == kPanel;
  float* sums = whole ? c : square;
  const int64_t sums_stride = whole ? stride : kPanel;
  if (add) {
    if (!whole) {
      memset(square, 0, sizeof(square));
      copy_square(c, stride, square, kPanel, rows, columns);
    }
    load_sums(sums, sums_stride);
  } else {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int64_t k = 0; k < depth; k += kDepthUnit, strip += 2 * kTile, panel += 2 * kTile) {
    tile_load<4>(strip, 64);
    tile_load<6>(panel, 64);
    tile_multiply<0, 4, 6>();
    tile_load<7>(panel + kTile, 64);
    tile_multiply<1, 4, 7>();
    tile_load<5>(strip + kTile, 64);
    tile_multiply<2, 5, 6>();
    tile_multiply<3, 5, 7>();
  }
  store_sums(sums, sums_stride);
  if (!whole) copy_square(square, kPanel, c, stride, rows, columns);
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
