#include <immintrin.h>

#include "worker/kernels/cpu/attention_body.h"

namespace titan::kernels {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;  // 24 of the 32 registers hold sums.
  typedef float Float __attribute__((vector_size(64), may_alias));
  typedef int32_t Int __attribute__((vector_size(64), may_alias));

  static TITAN_INLINE Float all(float value) { return _mm512_set1_ps(value); }
  static TITAN_INLINE Int numbers(int32_t value) { return (Int)_mm512_set1_epi32(value); }
  static TITAN_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static TITAN_INLINE bool any(Int mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }

  static TITAN_INLINE Float exp2(Float x) {
    const Float rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(power_of_two<4>(rest), x);  // Times two to the whole number below x.
  }
};

using Attention = FmaAttention<Avx512>;

void nothing() {}

}  // namespace

const AttentionLevel kAttentionAvx512 = {
    .query_block = Attention::kQueries,
    .forward_bytes = Attention::forward_bytes,
    .backward_bytes = Attention::backward_bytes,
    .enter = nothing,
    .leave = nothing,
    .forward = Attention::forward,
    .backward = Attention::backward,
};

}  // namespace titan::kernels
