#include <immintrin.h>

#include "worker/rank/kernels/cpu/attention_body.h"

namespace titan::kernels {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;  // 12 of the 16 registers hold sums.
  typedef float Float __attribute__((vector_size(32), may_alias));
  typedef int32_t Int __attribute__((vector_size(32), may_alias));
  typedef uint32_t Bits __attribute__((vector_size(32), may_alias));

  static TITAN_INLINE Float all(float value) { return _mm256_set1_ps(value); }
  static TITAN_INLINE Int numbers(int32_t value) { return (Int)_mm256_set1_epi32(value); }
  static TITAN_INLINE Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static TITAN_INLINE bool any(Int mask) { return _mm256_movemask_ps((__m256)mask) != 0; }

  // Computes 2^x, with x raised to at least -126. Whole powers go into the exponent.
  static TITAN_INLINE Float exp2(Float x) {
    x = max(all(-126.0f), x);
    const Float shifter = all(12582912.0f);  // 1.5 * 2^23: the last bits of the sum are the integer.
    const Float shifted = (x - 0.5f) + shifter;
    const Float power = power_of_two<4>(x - (shifted - shifter));
    return (Float)((Bits)power + ((Bits)shifted << 23));  // May wrap for keys that are not seen.
  }
};

}  // namespace

const AttentionLevel kAttentionAvx2 = level_of<FmaAttention<Avx2>>();

}  // namespace titan::kernels
