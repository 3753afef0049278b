#include "worker/rank/random/random_math.h"

#include <gtest/gtest.h>

#include <limits>

#include "worker/rank/random/streams.h"

namespace titan::random {
namespace {

// A device draws element by element and the CPU in chunks, by the same functions and so with the same bits.
TEST(RandomMathTest, SingleElementsEqualTheChunks) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double bound : {0.01, 0.06, kInfinity}) {
    const TruncatedNormal normal(0.02, -bound, bound);
    for (const int64_t chunk : {int64_t{0}, int64_t{1}, int64_t{977}, int64_t{1} << 33}) {
      const uint64_t key = stream_key(static_cast<uint64_t>(chunk) + 7, "layers.0.attention.wq.weight");
      float expected[kChunk];
      draw_chunk(key, chunk, normal, expected);
      for (int64_t i = 0; i < kChunk; ++i) {
        EXPECT_EQ(element(key, chunk * kChunk + i, normal.std, normal.lower, normal.upper, normal.below, normal.above,
                          normal.inside),
                  expected[i])
            << "element " << i << " of chunk " << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace titan::random
