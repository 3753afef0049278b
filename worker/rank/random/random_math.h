#pragma once

// Computes one element of a counter-based stream, on the CPU and on CUDA. It uses only fp32 sums, products, square
// roots and bit operations, in an order that no compiler may change (no fused multiply-add), so both give the same
// bits.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define TITAN_ON_DEVICE __host__ __device__ inline
#else
#define TITAN_ON_DEVICE [[gnu::always_inline]] inline
#endif

namespace titan::random {

TITAN_ON_DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TITAN_ON_DEVICE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns the natural logarithm of a normal positive x, within 2 ulp. libm's version differs between releases and does
// not vectorize.
TITAN_ON_DEVICE float natural_log(float x) {
  constexpr float kSqrtHalf = 0.70710678f;
  const uint32_t bits = bits_of(x);
  float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 126);
  float m = float_of((bits & 0x007fffffu) | 0x3f000000u);  // In [0.5, 1).
  const bool low = m < kSqrtHalf;
  exponent = low ? exponent - 1.0f : exponent;
  m = (low ? m + m : m) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float z = m * m;
  return m + (m * z * p + exponent * -2.12194440e-4f - 0.5f * z) + exponent * 0.693359375f;
}

// Returns the quantile of the standard normal for the smaller tail mass `tail` in (0, 0.5], as a positive number:
// sqrt(2) erfinv(1 - 2 tail) with M. Giles's single-precision polynomials ("Approximating the erfinv function").
TITAN_ON_DEVICE float upper_quantile(float tail) {
  const float x = 1.0f - 2.0f * tail;
  const float w = -natural_log(4.0f * tail * (1.0f - tail));
  const float a = w - 2.5f;
  float p = 2.81022636e-08f;
  p = p * a + 3.43273939e-07f;
  p = p * a - 3.5233877e-06f;
  p = p * a - 4.39150654e-06f;
  p = p * a + 0.00021858087f;
  p = p * a - 0.00125372503f;
  p = p * a - 0.00417768164f;
  p = p * a + 0.246640727f;
  p = p * a + 1.50140941f;
  const float b = sqrtf(w) - 3.0f;
  float q = -0.000200214257f;
  q = q * b + 0.000100950558f;
  q = q * b + 0.00134934322f;
  q = q * b - 0.00367342844f;
  q = q * b + 0.00573950773f;
  q = q * b - 0.0076224613f;
  q = q * b + 0.00943887047f;
  q = q * b + 1.00167406f;
  q = q * b + 2.83297682f;
  return 1.41421356f * (w < 5.0f ? p : q) * x;
}

// Converts a Philox word to an element of the truncated normal distribution. The parameters are those of
// TruncatedNormal in worker/rank/nn.
TITAN_ON_DEVICE float truncated_normal(uint32_t word, float std, float lower, float upper, float below, float above,
                                       float inside) {
  constexpr float kScale = 1.0f / 2147483648.0f;
  // 31 bits give a point in (0, 1), kept as the distances to both ends, so that both tails have full precision.
  const int32_t bits = static_cast<int32_t>(word >> 1);
  const float from_left = (static_cast<float>(bits) + 0.5f) * kScale;
  const float from_right = (static_cast<float>(0x7fffffff - bits) + 0.5f) * kScale;
  const float left = below + from_left * inside;
  const float right = above + from_right * inside;
  const bool negative = left < right;
  const float tail = negative ? left : right;
  const float z = upper_quantile(tail < 0.5f ? tail : 0.5f);
  const float value = (negative ? -z : z) * std;
  const float capped = value < upper ? value : upper;
  return capped > lower ? capped : lower;
}

// One round of Philox-4x32-10 (Salmon et al., SC 2011). After each of the ten rounds the keys grow by kPhiloxKey0 and
// kPhiloxKey1.
inline constexpr uint32_t kPhiloxKey0 = 0x9E3779B9, kPhiloxKey1 = 0xBB67AE85;
TITAN_ON_DEVICE void philox_round(uint32_t (&word)[4], uint32_t k0, uint32_t k1) {
  const uint64_t a = uint64_t{0xD2511F53} * word[0];
  const uint64_t b = uint64_t{0xCD9E8D57} * word[2];
  const uint32_t next0 = static_cast<uint32_t>(b >> 32) ^ word[1] ^ k0;
  const uint32_t next2 = static_cast<uint32_t>(a >> 32) ^ word[3] ^ k1;
  word[1] = static_cast<uint32_t>(b);
  word[3] = static_cast<uint32_t>(a);
  word[0] = next0;
  word[2] = next2;
}

// Returns element `index` of the stream, without computing the others. A chunk of 64 elements comes from 16 counters of
// four words, word-major.
TITAN_ON_DEVICE float element(uint64_t key, int64_t index, float std, float lower, float upper, float below,
                              float above, float inside) {
  const uint64_t chunk = static_cast<uint64_t>(index) / 64;
  const uint32_t place = static_cast<uint32_t>(static_cast<uint64_t>(index) % 64);
  const uint64_t counter = chunk * 16 + place % 16;
  uint32_t word[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    philox_round(word, k0, k1);
    k0 += kPhiloxKey0;
    k1 += kPhiloxKey1;
  }
  return truncated_normal(word[place / 16], std, lower, upper, below, above, inside);
}

}  // namespace titan::random
