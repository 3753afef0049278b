#include <immintrin.h>

#include "worker/kernels/cpu/attention_tiles_body.h"

namespace titan::kernels {
namespace {

struct Amx {
  typedef float Float __attribute__((vector_size(64), may_alias));
  typedef int32_t Int __attribute__((vector_size(64), may_alias));
  typedef uint16_t Words __attribute__((vector_size(64), may_alias));

  static TITAN_INLINE Float all(float value) { return _mm512_set1_ps(value); }
  static TITAN_INLINE Int numbers(int32_t value) { return (Int)_mm512_set1_epi32(value); }
  static TITAN_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static TITAN_INLINE bool any(Int mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }

  // Degree 3: bf16, which it becomes, tells no more.
  static TITAN_INLINE Float exp2(Float x) {
    const Float rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(power_of_two<3>(rest), x);  // Times two to the whole number below x.
  }

  // low, then high.
  static TITAN_INLINE Words narrow(Float low, Float high) { return (Words)_mm512_cvtne2ps_pbh(high, low); }
  static TITAN_INLINE Words unpack_low(Words a, Words b) {
    return (Words)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
  }
  static TITAN_INLINE Words unpack_high(Words a, Words b) {
    return (Words)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
  }

  // By hand: the compiler's own (GCC 12) say neither what memory they read nor that they change tiles.
  template <int kTile>
  static TITAN_INLINE void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static TITAN_INLINE void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static TITAN_INLINE void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kSum, int kA, int kB>
  static TITAN_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void enter() {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}

void leave() { asm volatile("tilerelease"); }

using Attention = TileAttention<Amx>;

}  // namespace

const AttentionLevel kAttentionAmx = {
    .query_block = Attention::kQueries,
    .forward_bytes = Attention::forward_bytes,
    .backward_bytes = Attention::backward_bytes,
    .enter = enter,
    .leave = leave,
    .forward = Attention::forward,
    .backward = Attention::backward,
};

}  // namespace titan::kernels
