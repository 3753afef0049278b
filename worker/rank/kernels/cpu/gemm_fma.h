#pragma once

#include "worker/rank/kernels/cpu/gemm_operand.h"

// Inner product for levels without bf16 products. Operands are widened to fp32, and a strip of rows is multiplied by a
// panel of columns in registers.
namespace titan::kernels::TITAN_LEVEL {
namespace {

using Packed = float;
// Rows. With two vectors of columns each, three quarters of the registers.
constexpr int64_t kStrip = kLanes == 16 ? 12 : 6;
constexpr int64_t kPanel = 2 * kLanes;
constexpr int64_t kPanelsAtOnce = 1;
constexpr int64_t kPanelsPacked = 1;
constexpr int64_t kStripsPerBlock = 8;
constexpr int64_t kBlockDepth = 256;
constexpr int64_t kDepthUnit = 1;

class TileSession {};  // Sets up nothing.

// Widens and transposes eight rows of bf16 from `from` on, `stride` apart: their first eight elements go to
// to[depth][unit].
void turn_eight(const uint16_t* from, int64_t stride, float* to, int64_t unit) {
  const auto row = [=](int64_t i) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  };
  __m256 columns[8];
  transpose_eight(row, columns);
#pragma GCC unroll 8
  for (int64_t k = 0; k < 8; ++k) _mm256_storeu_ps(to + k * unit, columns[k]);
}

// Packs the operand from outer position `first` and depth `first_depth` into to[depth][unit], with zeros past `count`
// positions.
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
  const uint16_t* rows = from.data + first * from.stride + first_depth;
  // Packs eight by eight: an expert has few rows per packed weight, so packing numbers one by one would take as long as
  // the product.
  const int64_t turned = count / 8 * 8, depth_turned = depth / 8 * 8;
  for (int64_t i = 0; i < turned; i += 8) {
    for (int64_t k = 0; k < depth_turned; k += 8) {
      turn_eight(rows + i * from.stride + k, from.stride, to + k * unit + i, unit);
    }
  }
  for (int64_t i = 0; i < unit; ++i) {
    for (int64_t k = i < turned ? depth_turned : 0; k < depth; ++k) {
      const uint32_t bits = i < count ? static_cast<uint32_t>(rows[i * from.stride + k]) << 16 : 0;
      to[k * unit + i] = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
    }
  }
}
// Packs strips of `count` positions, one after the other.
void pack_strips(const Operand& a, int64_t first, int64_t count, int64_t first_depth, int64_t depth, float* to) {
  for (int64_t i = 0; i < count; i += kStrip, to += kStrip * depth) {
    pack<kStrip>(a, first + i, count - i < kStrip ? count - i : kStrip, first_depth, depth, to);
  }
}
void pack_panels_of(const Operand& b, int64_t first, int64_t count, int64_t first_depth, int64_t depth, float* to) {
  pack<kPanel>(b, first, count, first_depth, depth, to);
}

// Prefetches nothing: multiplying a panel takes longer than loading the next one.
struct PanelPrefetch {
  PanelPrefetch(const float*, int64_t) {}
};

// sums [strip][panel] (+)= strip times panel. There is only one panel.
void multiply(const float* strip, const float* panel, int64_t, int64_t, int64_t depth, float* sums, bool add,
              const PanelPrefetch&) {
  Floats own[kStrip][2];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kStrip; ++i) own[i][0] = own[i][1] = splat(0);
  for (int64_t k = 0; k < depth; ++k, strip += kStrip, panel += kPanel) {
    const Floats left = load(panel, All{}), right = load(panel + kLanes, All{});
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStrip; ++i) {
      const Floats a = splat(strip[i]);
      own[i][0] = fma(a, left, own[i][0]);
      own[i][1] = fma(a, right, own[i][1]);
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
