#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "worker/rank/kernels/cpu/inline.h"

// One set of vector operations for the bodies of the kernels, at the level of the file that includes it. Such files
// have nothing with weak linkage (no std::, no inline functions at namespace scope): the linker would keep one of
// several copies, and one compiled for AVX-512 crashes the program on an older machine. So everything here, and every
// body, is static.

namespace titan::kernels::TITAN_LEVEL {
namespace {

// Every lane of a vector. The alternative is First(n): loads give 0 in the other lanes, and stores leave them
// unchanged.
struct All {};

#if defined(__AVX512F__)

using Floats = __m512;
using Ints = __m512i;
using Mask = __mmask16;
constexpr int64_t kLanes = 16;

struct First {
  int64_t count;
  __mmask16 lanes;
  explicit First(int64_t n) : count(n), lanes(static_cast<__mmask16>((1U << n) - 1)) {}
};

TITAN_INLINE Floats splat(float value) { return _mm512_set1_ps(value); }
TITAN_INLINE Floats bits_as_floats(Ints bits) { return _mm512_castsi512_ps(bits); }
TITAN_INLINE Floats widen(__m256i narrow) {
  return bits_as_floats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

TITAN_INLINE Floats load(const float* from, All) { return _mm512_loadu_ps(from); }
TITAN_INLINE Floats load(const float* from, First first) { return _mm512_maskz_loadu_ps(first.lanes, from); }
TITAN_INLINE Floats load(const uint16_t* from, All) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
TITAN_INLINE Floats load(const uint16_t* from, First first) {
  return widen(_mm256_maskz_loadu_epi16(first.lanes, from));
}

TITAN_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }         // a b + c
TITAN_INLINE Floats minus_fma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
TITAN_INLINE Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }   // b if either is NaN.
TITAN_INLINE Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }  // b if either is NaN.
TITAN_INLINE Floats root(Floats a) { return _mm512_sqrt_ps(a); }
TITAN_INLINE Floats nearest(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TITAN_INLINE Mask is_less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TITAN_INLINE Mask is_less_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
TITAN_INLINE Mask is_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
TITAN_INLINE Mask is_number(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q); }
TITAN_INLINE Floats choose(Mask mask, Floats yes, Floats no) { return _mm512_mask_blend_ps(mask, no, yes); }
TITAN_INLINE Floats swap_pairs(Floats a) { return _mm512_permute_ps(a, 0xB1); }
TITAN_INLINE Floats even_twice(Floats a) { return _mm512_moveldup_ps(a); }
TITAN_INLINE Floats odd_twice(Floats a) { return _mm512_movehdup_ps(a); }
TITAN_INLINE Floats minus_plus(Floats a, Floats b, Floats c) { return _mm512_fmaddsub_ps(a, b, c); }  // a b -+ c
TITAN_INLINE Floats plus_minus(Floats a, Floats b, Floats c) { return _mm512_fmsubadd_ps(a, b, c); }  // a b +- c

// a times 2^n for an integer n. Infinity if out of range.
TITAN_INLINE Floats times_power(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }

// Rounds each fp32 to the nearest bf16 (ties to even), in the upper half. NaN stays NaN.
TITAN_INLINE Ints rounded_bits(Floats a) {
  const Ints bits = _mm512_castps_si512(a);
  const Ints odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const Ints rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_mask_blend_epi32(is_number(a), _mm512_or_si512(bits, _mm512_set1_epi32(0x400000)), rounded);
}
TITAN_INLINE Floats rounded(Floats a) {
  return bits_as_floats(_mm512_and_si512(rounded_bits(a), _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}
TITAN_INLINE __m256i narrow(Floats a) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(a), 16)); }

TITAN_INLINE void store(float* to, Floats a, All) { _mm512_storeu_ps(to, a); }
TITAN_INLINE void store(float* to, Floats a, First first) { _mm512_mask_storeu_ps(to, first.lanes, a); }
TITAN_INLINE void store(uint16_t* to, Floats a, All) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(a)); }
TITAN_INLINE void store(uint16_t* to, Floats a, First first) { _mm256_mask_storeu_epi16(to, first.lanes, narrow(a)); }

// Sets lanes that are not among the first to `other`.
TITAN_INLINE Floats keep(Floats a, Floats, All) { return a; }
TITAN_INLINE Floats keep(Floats a, Floats other, First first) { return _mm512_mask_blend_ps(first.lanes, other, a); }

TITAN_INLINE __m256 upper_half(Floats a) { return _mm512_extractf32x8_ps(a, 1); }
TITAN_INLINE __m256 lower_half(Floats a) { return _mm512_castps512_ps256(a); }
TITAN_INLINE float lowest(Floats a) { return _mm256_cvtss_f32(lower_half(a)); }

// Loads kLanes contiguous pairs (even, odd).
TITAN_INLINE Ints load_pairs(const uint16_t* from, All) { return _mm512_loadu_si512(from); }
TITAN_INLINE Ints load_pairs(const uint16_t* from, First first) { return _mm512_maskz_loadu_epi32(first.lanes, from); }
TITAN_INLINE void store_pairs(uint16_t* to, Ints pairs, All) { _mm512_storeu_si512(to, pairs); }
TITAN_INLINE void store_pairs(uint16_t* to, Ints pairs, First first) {
  _mm512_mask_storeu_epi32(to, first.lanes, pairs);
}
TITAN_INLINE Floats even_of(Ints pairs) { return bits_as_floats(_mm512_slli_epi32(pairs, 16)); }
TITAN_INLINE Floats odd_of(Ints pairs) {
  return bits_as_floats(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}
TITAN_INLINE Ints pairs_of(Floats even, Floats odd) {
  const Ints upper = _mm512_and_si512(rounded_bits(odd), _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
  return _mm512_or_si512(upper, _mm512_srli_epi32(rounded_bits(even), 16));
}
// The same for numbers that bf16 holds exactly.
TITAN_INLINE Ints narrow_pairs_of(Floats even, Floats odd) {
  return _mm512_or_si512(_mm512_castps_si512(odd), _mm512_srli_epi32(_mm512_castps_si512(even), 16));
}
TITAN_INLINE void deinterleave(Floats low, Floats high, Floats& even, Floats& odd) {
  const Ints evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_ps(low, evens, high);
  odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high);
}
TITAN_INLINE void interleave(Floats even, Floats odd, Floats& low, Floats& high) {
  const Ints first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  low = _mm512_permutex2var_ps(even, first, odd);
  high = _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd);
}

struct Doubles {
  __m512d low, high;
};
TITAN_INLINE Doubles no_doubles() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
TITAN_INLINE Doubles add_squares(Floats a, Doubles sum) {
  const __m512d low = _mm512_cvtps_pd(lower_half(a)), high = _mm512_cvtps_pd(upper_half(a));
  return {_mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high)};
}
TITAN_INLINE double sum(Doubles a) {
  double lanes[8];
  _mm512_storeu_pd(lanes, _mm512_add_pd(a.low, a.high));
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

#else

using Floats = __m256;
using Ints = __m256i;
using Mask = __m256;
constexpr int64_t kLanes = 8;

struct First {
  int64_t count;
  __m256i lanes;
  explicit First(int64_t n)
      : count(n),
        lanes(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))) {}
};

TITAN_INLINE Floats splat(float value) { return _mm256_set1_ps(value); }
TITAN_INLINE Floats bits_as_floats(Ints bits) { return _mm256_castsi256_ps(bits); }
TITAN_INLINE Floats widen(__m128i narrow) {
  return bits_as_floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

TITAN_INLINE Floats load(const float* from, All) { return _mm256_loadu_ps(from); }
TITAN_INLINE Floats load(const float* from, First first) { return _mm256_maskload_ps(from, first.lanes); }
TITAN_INLINE Floats load(const uint16_t* from, All) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TITAN_INLINE Floats load(const uint16_t* from, First first) {
  alignas(16) uint16_t some[kLanes] = {};
  for (int64_t i = 0; i < first.count; ++i) some[i] = from[i];
  return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(some)));
}

TITAN_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }         // a b + c
TITAN_INLINE Floats minus_fma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
TITAN_INLINE Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }   // b if either is NaN.
TITAN_INLINE Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }  // b if either is NaN.
TITAN_INLINE Floats root(Floats a) { return _mm256_sqrt_ps(a); }
TITAN_INLINE Floats nearest(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TITAN_INLINE Mask is_less(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
TITAN_INLINE Mask is_less_equal(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
TITAN_INLINE Mask is_equal(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
TITAN_INLINE Mask is_number(Floats a) { return _mm256_cmp_ps(a, a, _CMP_ORD_Q); }
TITAN_INLINE Floats choose(Mask mask, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, mask); }
TITAN_INLINE Floats swap_pairs(Floats a) { return _mm256_permute_ps(a, 0xB1); }
TITAN_INLINE Floats even_twice(Floats a) { return _mm256_moveldup_ps(a); }
TITAN_INLINE Floats odd_twice(Floats a) { return _mm256_movehdup_ps(a); }
TITAN_INLINE Floats minus_plus(Floats a, Floats b, Floats c) { return _mm256_fmaddsub_ps(a, b, c); }  // a b -+ c
TITAN_INLINE Floats plus_minus(Floats a, Floats b, Floats c) { return _mm256_fmsubadd_ps(a, b, c); }  // a b +- c

// a times 2^n for an integer n from -125 to 128, in two steps, because 2^128 exceeds fp32.
TITAN_INLINE Floats times_power(Floats a, Floats n) {
  const Ints exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(126));
  return a * bits_as_floats(_mm256_slli_epi32(exponent, 23)) * splat(2);
}

// Rounds each fp32 to the nearest bf16 (ties to even), in the upper half. NaN stays NaN.
TITAN_INLINE Ints rounded_bits(Floats a) {
  const Ints bits = _mm256_castps_si256(a);
  const Ints odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Ints rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const Ints none = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_castps_si256(choose(is_number(a), bits_as_floats(rounded), bits_as_floats(none)));
}
TITAN_INLINE Floats rounded(Floats a) {
  return bits_as_floats(_mm256_and_si256(rounded_bits(a), _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
}
TITAN_INLINE __m128i narrow(Floats a) {
  const Ints bits = _mm256_srli_epi32(rounded_bits(a), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

TITAN_INLINE void store(float* to, Floats a, All) { _mm256_storeu_ps(to, a); }
TITAN_INLINE void store(float* to, Floats a, First first) { _mm256_maskstore_ps(to, first.lanes, a); }
TITAN_INLINE void store(uint16_t* to, Floats a, All) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(a)); }
TITAN_INLINE void store(uint16_t* to, Floats a, First first) {
  alignas(16) uint16_t some[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(some), narrow(a));
  for (int64_t i = 0; i < first.count; ++i) to[i] = some[i];
}

// Sets lanes that are not among the first to `other`.
TITAN_INLINE Floats keep(Floats a, Floats, All) { return a; }
TITAN_INLINE Floats keep(Floats a, Floats other, First first) { return choose(bits_as_floats(first.lanes), a, other); }

TITAN_INLINE __m128 upper_half(Floats a) { return _mm256_extractf128_ps(a, 1); }
TITAN_INLINE __m128 lower_half(Floats a) { return _mm256_castps256_ps128(a); }
TITAN_INLINE float lowest(Floats a) { return _mm256_cvtss_f32(a); }

// Loads kLanes contiguous pairs (even, odd).
TITAN_INLINE Ints load_pairs(const uint16_t* from, All) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
TITAN_INLINE Ints load_pairs(const uint16_t* from, First first) {
  return _mm256_maskload_epi32(reinterpret_cast<const int*>(from), first.lanes);
}
TITAN_INLINE void store_pairs(uint16_t* to, Ints pairs, All) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), pairs);
}
TITAN_INLINE void store_pairs(uint16_t* to, Ints pairs, First first) {
  _mm256_maskstore_epi32(reinterpret_cast<int*>(to), first.lanes, pairs);
}
TITAN_INLINE Floats even_of(Ints pairs) { return bits_as_floats(_mm256_slli_epi32(pairs, 16)); }
TITAN_INLINE Floats odd_of(Ints pairs) {
  return bits_as_floats(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
}
TITAN_INLINE Ints pairs_of(Floats even, Floats odd) {
  const Ints upper = _mm256_and_si256(rounded_bits(odd), _mm256_set1_epi32(static_cast<int>(0xffff0000U)));
  return _mm256_or_si256(upper, _mm256_srli_epi32(rounded_bits(even), 16));
}
// The same for numbers that bf16 holds exactly.
TITAN_INLINE Ints narrow_pairs_of(Floats even, Floats odd) {
  return _mm256_or_si256(_mm256_castps_si256(odd), _mm256_srli_epi32(_mm256_castps_si256(even), 16));
}
TITAN_INLINE Floats cross_quarters(Floats a) {  // 0 2 1 3, in units of two lanes.
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xD8));
}
TITAN_INLINE void deinterleave(Floats low, Floats high, Floats& even, Floats& odd) {
  even = cross_quarters(_mm256_shuffle_ps(low, high, 0x88));
  odd = cross_quarters(_mm256_shuffle_ps(low, high, 0xDD));
}
TITAN_INLINE void interleave(Floats even, Floats odd, Floats& low, Floats& high) {
  const Floats a = cross_quarters(even), b = cross_quarters(odd);
  low = _mm256_unpacklo_ps(a, b);
  high = _mm256_unpackhi_ps(a, b);
}

struct Doubles {
  __m256d low, high;
};
TITAN_INLINE Doubles no_doubles() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
TITAN_INLINE Doubles add_squares(Floats a, Doubles sum) {
  const __m256d low = _mm256_cvtps_pd(lower_half(a)), high = _mm256_cvtps_pd(upper_half(a));
  return {_mm256_fmadd_pd(low, low, sum.low), _mm256_fmadd_pd(high, high, sum.high)};
}
TITAN_INLINE double sum(Doubles a) {
  double lanes[4];
  _mm256_storeu_pd(lanes, _mm256_add_pd(a.low, a.high));
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

#endif

// Reduces all lanes, as a tree.
TITAN_INLINE float sum(Floats a) {
#if defined(__AVX512F__)
  const __m256 eight = lower_half(a) + upper_half(a);
#else
  const __m256 eight = a;
#endif
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return _mm_cvtss_f32(two) + _mm_cvtss_f32(_mm_movehdup_ps(two));
}
TITAN_INLINE float largest(Floats a) {
#if defined(__AVX512F__)
  const __m256 eight = _mm256_max_ps(lower_half(a), upper_half(a));
#else
  const __m256 eight = a;
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Return the lanes that pairs of fp32, side by side in two vectors, occupy in the first and in the second vector.
// `pairs` has one lane per pair.
TITAN_INLINE First lower_of(First pairs) { return First(2 * pairs.count < kLanes ? 2 * pairs.count : kLanes); }
TITAN_INLINE First upper_of(First pairs) { return First(2 * pairs.count < kLanes ? 0 : 2 * pairs.count - kLanes); }

// e^x with a relative error of at most 2e-7, and 0 below -86.5, so that no result is denormal. This is Cephes' expf.
TITAN_INLINE Floats exponential(Floats x) {
  // The bounds are the first operands, because larger and smaller pass on NaN as the second.
  const Floats bounded = smaller(splat(88.8F), larger(splat(-86.5F), x));
  const Floats n = nearest(bounded * splat(1.44269504F));
  Floats r = minus_fma(n, splat(0.693359375F), bounded);
  r = minus_fma(n, splat(-2.12194440e-4F), r);
  Floats p = splat(1.9875691500e-4F);
  p = fma(p, r, splat(1.3981999507e-3F));
  p = fma(p, r, splat(8.3334519073e-3F));
  p = fma(p, r, splat(4.1665795894e-2F));
  p = fma(p, r, splat(1.6666665459e-1F));
  p = fma(p, r, splat(5.0000001201e-1F));
  p = fma(p, r * r, r + splat(1));
  return choose(is_less(x, splat(-86.5F)), splat(0), times_power(p, n));
}

// Visits [0, n) one vector at a time: visit(offset, All or First).
template <typename Visit>
TITAN_INLINE void for_vectors(int64_t n, Visit visit) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) visit(i, All{});
  if (i < n) visit(i, First(n - i));
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
