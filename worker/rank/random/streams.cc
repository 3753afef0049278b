#include "worker/rank/random/streams.h"

#include <cmath>

#include "worker/rank/random/random_math.h"

namespace titan::random {
namespace {

// Philox-4x32-10 (Salmon et al., SC 2011) over consecutive counters. It is inlined so that each clone of draw_chunk has
// a separate copy.
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
      uint32_t one[4] = {word[0][i], word[1][i], word[2][i], word[3][i]};
      philox_round(one, k0, k1);
      for (int w = 0; w < 4; ++w) word[w][i] = one[w];
    }
    k0 += kPhiloxKey0;
    k1 += kPhiloxKey1;
  }
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

TruncatedNormal::TruncatedNormal(double std_in, double lower_in, double upper_in)
    : std(static_cast<float>(std_in)), lower(static_cast<float>(lower_in)), upper(static_cast<float>(upper_in)) {
  const double under = mass_below(lower_in / std_in), over = mass_below(-upper_in / std_in);
  below = static_cast<float>(under);
  above = static_cast<float>(over);
  inside = static_cast<float>(1 - under - over);
}

__attribute__((target_clones("avx2", "default"))) void draw_chunk(uint64_t key, int64_t chunk,
                                                                  const TruncatedNormal& distribution, float* out) {
  PhiloxWords word;
  philox_rounds(key, static_cast<uint64_t>(chunk) * kPhiloxBlocks, word);
  for (int w = 0; w < 4; ++w) {
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      out[w * kPhiloxBlocks + i] =
          truncated_normal(word[w][i], distribution.std, distribution.lower, distribution.upper, distribution.below,
                           distribution.above, distribution.inside);
    }
  }
}

// Maps 24 bits to the middle of one of as many equal steps: symmetric, and exact until it is scaled.
__attribute__((target_clones("avx2", "default"))) void draw_uniform_chunk(uint64_t key, int64_t chunk, float bound,
                                                                          float* out) {
  PhiloxWords word;
  philox_rounds(key, static_cast<uint64_t>(chunk) * kPhiloxBlocks, word);
  for (int w = 0; w < 4; ++w) {
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      const int32_t steps = static_cast<int32_t>(word[w][i] >> 8) - (1 << 23);
      out[w * kPhiloxBlocks + i] = bound * ((static_cast<float>(steps) + 0.5f) * (1.0f / 8388608.0f));
    }
  }
}

}  // namespace titan::random
