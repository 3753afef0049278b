#pragma once

#include "worker/kernels/cpu/gemm_operand.h"

// The inner product for levels without tiles: operands widened to fp32, a strip of rows times a panel of columns in
// registers.
namespace titan::kernels::TITAN_LEVEL {
namespace {

using Packed = float;
constexpr int64_t kStrip =
    kLanes == 16 ? 12 : 6;  // Rows: with two vectors of columns each, three quarters of the registers.
constexpr int64_t kPanel = 2 * kLanes;
constexpr int64_t kStripsPerBlock = 8;
constexpr int64_t kBlockDepth = 256;
constexpr int64_t kDepthUnit = 1;

class Session {};  // Nothing to set up.

// to[depth][unit] = the operand from outer place and depth on; 0 past `count` places.
template <int64_t unit>
void pack(const Operand& from, int64_t first, int64_t count, int64_t first_depth, int64_t depth, float* to) {
  if (from.deep) {
    for (int64_t k = 0; k < depth; ++k, to += unit) {
      const uint16_t* row = from.data + (first_depth + k) * from.stride + first;
      for_vectors(count, [=](int64_t i, auto lanes) { store(to + i, load(row + i, lanes), lanes); });
      for (int64_t i = count; i < unit; ++i) to[i] = 0;
    }
    return;
  }
  for (int64_t i = 0; i < unit; ++i) {
    const uint16_t* row = from.data + (first + i) * from.stride + first_depth;
    for (int64_t k = 0; k < depth; ++k) {
      const uint32_t bits = i < count ? static_cast<uint32_t>(row[k]) << 16 : 0;
      to[k * unit + i] = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
    }
  }
}
void pack_strip(const Operand& a, int64_t first, int64_t count, int64_t first_depth, int64_t depth, float* to) {
  pack<kStrip>(a, first, count, first_depth, depth, to);
}
void pack_panel(const Operand& b, int64_t first, int64_t count, int64_t first_depth, int64_t depth, float* to) {
  pack<kPanel>(b, first, count, first_depth, depth, to);
}

template <typename Lanes>
TITAN_INLINE void put(float* c, Floats sum, bool add, Lanes lanes) {
  store(c, add ? load(c, lanes) + sum : sum, lanes);
}

// c [rows, columns] (+)= strip times panel.
void multiply(const float* strip, const float* panel, int64_t depth, float* c, int64_t stride, int64_t rows,
              int64_t columns, bool add) {
  Floats sums[kStrip][2];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kStrip; ++i) sums[i][0] = sums[i][1] = splat(0);
  for (int64_t k = 0; k < depth; ++k, strip += kStrip, panel += kPanel) {
    const Floats left = load(panel, All{}), right = load(panel + kLanes, All{});
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStrip; ++i) {
      const Floats a = splat(strip[i]);
      sums[i][0] = fma(a, left, sums[i][0]);
      sums[i][1] = fma(a, right, sums[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < kStrip; ++i) {
    if (i >= rows) continue;
    float* row = c + i * stride;
    if (columns == kPanel) {
      put(row, sums[i][0], add, All{});
      put(row + kLanes, sums[i][1], add, All{});
    } else if (columns >= kLanes) {
      put(row, sums[i][0], add, All{});
      if (columns > kLanes) put(row + kLanes, sums[i][1], add, First(columns - kLanes));
    } else {
      put(row, sums[i][0], add, First(columns));
    }
  }
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
