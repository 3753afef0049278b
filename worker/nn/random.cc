#include "worker/nn/random.h"

#include <bit>
#include <cmath>

namespace titan::nn {
namespace {

// Philox-4x32-10 (Salmon et al., SC 2011) over consecutive counters. Inlined so that each clone of draw_chunk gets its
// own.
[[gnu::always_inline]] inline void philox_rounds(uint64_t key, uint64_t first_counter, PhiloxWords& word) {
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    const uint64_t counter = first_counter + static_cast<uint64_t>(i);
    word[0][i] = static_cast<uint32_t>(counter);
    word[1][i] = static_cast<uint32_t>(counter >> 32);
    word[2][i] = word[3][i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * word[0][i];
      const uint64_t b = uint64_t{0xCD9E8D57} * word[2][i];
      const uint32_t next0 = static_cast<uint32_t>(b >> 32) ^ word[1][i] ^ k0;
      const uint32_t next2 = static_cast<uint32_t>(a >> 32) ^ word[3][i] ^ k1;
      word[1][i] = static_cast<uint32_t>(b);
      word[3][i] = static_cast<uint32_t>(a);
      word[0][i] = next0;
      word[2][i] = next2;
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// Natural logarithm for normal positive x, within 2 ulp. libm's own differs between versions and does not vectorise.
[[gnu::always_inline]] inline float natural_log(float x) {
  constexpr float kSqrtHalf = 0.70710678f;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 126);
  float m = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f000000u);  // In [0.5, 1).
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

// The quantile of the standard normal for the smaller tail mass `tail` in (0, 0.5], as a positive number:
// sqrt(2) erfinv(1 - 2 tail) by M. Giles's single-precision polynomials ("Approximating the erfinv function").
[[gnu::always_inline]] inline float upper_quantile(float tail) {
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
  const float b = std::sqrt(w) - 3.0f;
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

double mass_below(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

}  // namespace

uint64_t stream_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  hash += seed * 0x9e3779b97f4a7c15;  // Then SplitMix64's finaliser, so that neighbouring seeds share no key bits.
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

void philox(uint64_t key, uint64_t first_counter, PhiloxWords& word) { philox_rounds(key, first_counter, word); }

CutNormal::CutNormal(double std_in, double lower_in, double upper_in)
    : std(static_cast<float>(std_in)), lower(static_cast<float>(lower_in)), upper(static_cast<float>(upper_in)) {
  const double under = mass_below(lower_in / std_in), over = mass_below(-upper_in / std_in);
  below = static_cast<float>(under);
  above = static_cast<float>(over);
  inside = static_cast<float>(1 - under - over);
}

__attribute__((target_clones("avx2", "default"))) void draw_chunk(uint64_t key, int64_t chunk,
                                                                  const CutNormal& distribution, float* out) {
  PhiloxWords word;
  philox_rounds(key, static_cast<uint64_t>(chunk) * kPhiloxBlocks, word);
  constexpr float kScale = 1.0f / 2147483648.0f;
  for (int w = 0; w < 4; ++w) {
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      // 31 bits to a point inside (0, 1), kept as the distances from both ends, so that both tails have full precision.
      const int32_t bits = static_cast<int32_t>(word[w][i] >> 1);
      const float from_left = (static_cast<float>(bits) + 0.5f) * kScale;
      const float from_right = (static_cast<float>(0x7fffffff - bits) + 0.5f) * kScale;
      const float left = distribution.below + from_left * distribution.inside;
      const float right = distribution.above + from_right * distribution.inside;
      const bool negative = left < right;
      const float tail = negative ? left : right;
      const float z = upper_quantile(tail < 0.5f ? tail : 0.5f);
      const float value = (negative ? -z : z) * distribution.std;
      const float capped = value < distribution.upper ? value : distribution.upper;
      out[w * kPhiloxBlocks + i] = capped > distribution.lower ? capped : distribution.lower;
    }
  }
}

}  // namespace titan::nn
