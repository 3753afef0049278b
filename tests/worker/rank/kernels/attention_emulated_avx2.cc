#include "tests/worker/rank/kernels/attention_emulated.h"
#include "worker/rank/kernels/cpu/attention_body.h"
#include "worker/rank/kernels/cpu/attention_tiles_body.h"

namespace titan::kernels {
namespace {

// Sixteen lanes without AVX-512.
struct Wide {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;
  typedef float Float __attribute__((vector_size(64), may_alias));
  typedef int32_t Int __attribute__((vector_size(64), may_alias));

  static TITAN_INLINE Float all(float value) { return value - Float{}; }
  static TITAN_INLINE Int numbers(int32_t value) { return value - Int{}; }
  static TITAN_INLINE Float max(Float a, Float b) { return a > b ? a : b; }
  static TITAN_INLINE bool any(Int mask) {
    int32_t together = 0;
    for (int i = 0; i < kLanes; ++i) together |= mask[i];
    return together != 0;
  }
  template <int kDegree>
  static TITAN_INLINE Float power(Float x) {
    Float whole = x, scale = x;
    for (int i = 0; i < kLanes; ++i) {
      whole[i] = __builtin_floorf(x[i]);
      scale[i] = __builtin_exp2f(whole[i]);
    }
    const Float rest = x - whole;
    return power_of_two<kDegree>(rest) * scale;
  }
  static TITAN_INLINE Float exp2(Float x) { return power<4>(x); }
};

// Eight tiles for each thread.
struct Tile {
  alignas(64) float numbers[16][16];
};
__thread Tile tiles[8];

struct Tiles : Wide {
  typedef uint16_t Words __attribute__((vector_size(64), may_alias));

  static TITAN_INLINE Float exp2(Float x) { return power<3>(x); }

  static TITAN_INLINE Words narrow(Float low, Float high) {
    Words words = {};
    for (int i = 0; i < 16; ++i) {
      words[i] = bf16_of(low[i]);
      words[16 + i] = bf16_of(high[i]);
    }
    return words;
  }
  // Selects the first four of each eight words, alternating between a and b; plus 4, the last four.
  static constexpr Words kFirstFour = {0,  32, 1,  33, 2,  34, 3,  35, 8,  40, 9,  41, 10, 42, 11, 43,
                                       16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59};
  static TITAN_INLINE Words unpack_low(Words a, Words b) { return __builtin_shuffle(a, b, kFirstFour); }
  static TITAN_INLINE Words unpack_high(Words a, Words b) { return __builtin_shuffle(a, b, kFirstFour + 4); }

  static TITAN_INLINE Words load_words(const uint16_t* from, int64_t count) {
    Words words = {};
    for (int i = 0; i < 32 && i < count; ++i) words[i] = from[i];
    return words;
  }
  static TITAN_INLINE void store_words(uint16_t* to, Words words, int64_t count) {
    for (int i = 0; i < 32 && i < count; ++i) to[i] = words[i];
  }

  template <int kTile>
  static void load_tile(const void* from, int64_t stride) {
    for (int i = 0; i < 16; ++i) {
      __builtin_memcpy(tiles[kTile].numbers[i], static_cast<const char*>(from) + i * stride, 64);
    }
  }
  template <int kTile>
  static void store_tile(void* to, int64_t stride) {
    for (int i = 0; i < 16; ++i) {
      __builtin_memcpy(static_cast<char*>(to) + i * stride, tiles[kTile].numbers[i], 64);
    }
  }
  template <int kTile>
  static void zero_tile() {
    __builtin_memset(&tiles[kTile], 0, sizeof(Tile));
  }
  template <int kSum, int kA, int kB>
  static void multiply() {
    uint16_t a[16][32], b[16][16][2];
    __builtin_memcpy(a, &tiles[kA], sizeof a);
    __builtin_memcpy(b, &tiles[kB], sizeof b);
    for (int odd = 0; odd < 2; ++odd) {
      float column[16][16];
      for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < 16; ++n) column[k][n] = float_of(b[k][n][odd]);
      }
      for (int m = 0; m < 16; ++m) {
        for (int k = 0; k < 16; ++k) {
          const float factor = float_of(a[m][2 * k + odd]);
          for (int n = 0; n < 16; ++n) tiles[kSum].numbers[m][n] += factor * column[k][n];
        }
      }
    }
  }
};

}  // namespace

const AttentionLevel testing::kAttentionEmulatedAvx512 = level_of<FmaAttention<Wide>>();
const AttentionLevel testing::kAttentionEmulatedAmx = level_of<TileAttention<Tiles>>();

}  // namespace titan::kernels
