#include "worker/rank/random/sample_draws.h"

#include <algorithm>
#include <limits>

#include "worker/rank/random/random_math.h"
#include "worker/rank/random/streams.h"

namespace titan::random {
namespace {

struct Words {
  uint32_t word[4];
};

// Returns the Philox-4x32-10 block of a counter of three words.
Words block(uint64_t key, uint64_t counter, uint32_t third) {
  Words words = {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), third, 0}};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    philox_round(words.word, k0, k1);
    k0 += kPhiloxKey0;
    k1 += kPhiloxKey1;
  }
  return words;
}

// All blocks of samples; the third word of the counter is 0 for draw_sample(), else the stream.
Words sample_block(uint64_t seed, int64_t row, uint32_t third) {
  return block(stream_key(seed, "samples"), static_cast<uint64_t>(row), third);
}

uint64_t joined(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }

}  // namespace

SampleDraws draw_sample(uint64_t seed, int64_t row, double drop_probability) {
  const Words words = sample_block(seed, row, 0);
  const auto happens = [&](uint32_t word) { return word * 0x1p-32 < drop_probability; };
  return {.crop = static_cast<double>(joined(words.word[0], words.word[1]) >> 11) * 0x1p-53,
          .drop_t5 = happens(words.word[2]),
          .drop_clip = happens(words.word[3])};
}

uint64_t sample_key(uint64_t seed, int64_t row, SampleStream stream) {
  const Words words = sample_block(seed, row, static_cast<uint32_t>(stream));
  return joined(words.word[0], words.word[1]);
}

void draw_normal(uint64_t key, int64_t first, int64_t count, float* out) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const TruncatedNormal standard(1, -kInfinite, kInfinite);
  float chunk[kChunk];
  for (int64_t at = first, end = first + count; at < end;) {
    const int64_t begin = at / kChunk * kChunk, stop = std::min(begin + kChunk, end);
    draw_chunk(key, at / kChunk, standard, chunk);
    std::copy(chunk + (at - begin), chunk + (stop - begin), out + (at - first));
    at = stop;
  }
}

float draw_unit(uint64_t key, int64_t index) {
  return static_cast<float>(block(key, static_cast<uint64_t>(index), 0).word[0] >> 8) * 0x1p-24f;
}

}  // namespace titan::random
