#pragma once

#include <immintrin.h>

#include "worker/rank/kernels/cpu/attention_common.h"

namespace titan::kernels {
namespace {

// Shared by the bodies of AVX-512 and of AMX. exp2 uses a polynomial of degree kDegree.
template <int kDegree>
struct Vectors512 {
  typedef float Float __attribute__((vector_size(64), may_alias));
  typedef int32_t Int __attribute__((vector_size(64), may_alias));

  static TITAN_INLINE Float all(float value) { return _mm512_set1_ps(value); }
  static TITAN_INLINE Int numbers(int32_t value) { return (Int)_mm512_set1_epi32(value); }
  static TITAN_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static TITAN_INLINE bool any(Int mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }

  static TITAN_INLINE Float exp2(Float x) {
    const Float rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(power_of_two<kDegree>(rest), x);  // Times two to the power floor(x).
  }
};

}  // namespace
}  // namespace titan::kernels
