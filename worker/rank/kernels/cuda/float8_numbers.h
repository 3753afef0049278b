#pragma once

#include <cmath>

#include "worker/rank/kernels/cuda/numbers.h"
#include "worker/rank/kernels/float8_scales.h"

// Casts single numbers and packs of eight to eight-bit floats, and computes scales
// (worker/rank/kernels/float8_scales.h).
namespace titan::kernels::device {

TITAN_BODY uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TITAN_BODY float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Magnitudes of bf16 are ordered like their bits, with infinity and then NaNs last.
TITAN_BODY uint32_t greatest_magnitude(uint32_t so_far, const Words& words) {
  TITAN_UNROLL
  for (const uint32_t two : words.w) {
    const uint32_t low = two & 0x7fff, high = two >> 16 & 0x7fff;
    so_far = low > so_far ? low : so_far;
    so_far = high > so_far ? high : so_far;
  }
  return so_far;
}

struct Maximum {
  TITAN_BODY uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

// Raises the float to a magnitude given as bits of bf16, atomically on a GPU.
TITAN_BODY void raise(float* place, uint32_t magnitude) {
  const auto bits = static_cast<int>(magnitude << 16);
#if defined(__CUDA_ARCH__)
  if (bits != 0) atomicMax(reinterpret_cast<int*>(place), bits);
#else
  int before;
  memcpy(&before, place, sizeof before);
  if (bits > before) memcpy(place, &bits, sizeof bits);
#endif
}

TITAN_BODY float scale_of(float amax, Float8Format to) {
  const double most = to.format == Float8Type::kE4m3 ? 448 : 57344;
  // This comparison lets NaN through. fp64 makes every device divide alike.
  const double divisor = amax < 1e-12 ? 1e-12 : static_cast<double>(amax);
  const auto scale = static_cast<float>(most / divisor);
  return to.power_of_two && scale == scale ? float_of(bits_of(scale) & 0xff800000U) : scale;
}

// Rounds to nearest, ties to even, and saturates. A NaN becomes 0x7f.
TITAN_BODY uint32_t encoded(float x, Float8Type format) {
  const int mantissa = format == Float8Type::kE4m3 ? 3 : 2, bias = format == Float8Type::kE4m3 ? 7 : 15;
  const float most = format == Float8Type::kE4m3 ? 448.0F : 57344.0F;
  const uint32_t sign = bits_of(x) >> 24 & 0x80;
  float magnitude = fabsf(x);
  if (magnitude != magnitude) return 0x7f;
  magnitude = magnitude > most ? most : magnitude;
  const uint32_t bits = bits_of(magnitude), dropped = 23 - mantissa;
  // Below the smallest normal number the code counts steps.
  if (bits < static_cast<uint32_t>(128 - bias) << 23) {
    const float steps = magnitude * float_of(static_cast<uint32_t>(127 + bias - 1 + mantissa) << 23);
    return sign | static_cast<uint32_t>(rintf(steps));
  }
  const uint32_t rounded = bits + (1U << (dropped - 1)) - 1 + (bits >> dropped & 1);
  return sign | ((rounded >> dropped) - (static_cast<uint32_t>(127 - bias) << mantissa));
}

// Encodes two numbers, the first in the lower byte.
TITAN_BODY uint32_t encoded(float first, float second, Float8Type format) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t both;
  if (format == Float8Type::kE4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
  }
  return both;
#else
  return encoded(first, format) | encoded(second, format) << 8;
#endif
}

template <typename Scale>
TITAN_BODY Codes codes_of(const Pack<kVector>& x, const Scale& scale, Float8Type format) {
  const auto two = [&](int i) { return encoded(x.v[i] * scale(i), x.v[i + 1] * scale(i + 1), format); };
  return {{two(0) | two(2) << 16, two(4) | two(6) << 16}};
}

}  // namespace titan::kernels::device
