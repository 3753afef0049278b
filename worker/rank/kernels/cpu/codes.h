#pragma once

#include "worker/rank/kernels/cpu/simd.h"
#include "worker/rank/kernels/dynamic_map.h"

// Loads and stores vectors of 8-bit codes, and rounds vectors to bf16 stochastically.
namespace titan::kernels::TITAN_LEVEL {
namespace {

#if defined(__AVX512F__)

TITAN_INLINE Ints load_codes(const uint8_t* from, All) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TITAN_INLINE Ints load_codes(const uint8_t* from, First first) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first.lanes, from));
}
TITAN_INLINE void store_codes(uint8_t* to, Ints codes, All) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(codes));
}
TITAN_INLINE void store_codes(uint8_t* to, Ints codes, First first) {
  _mm_mask_storeu_epi8(to, first.lanes, _mm512_cvtepi32_epi8(codes));
}
TITAN_INLINE Floats pick(const float* table, Ints index) { return _mm512_i32gather_ps(index, table, 4); }
TITAN_INLINE Ints pick(const uint8_t* table, Ints index) {
  return _mm512_and_si512(_mm512_i32gather_epi32(index, table, 1), _mm512_set1_epi32(0xff));
}

// Returns the code nearest to each r, which has a magnitude of at most 1.
TITAN_INLINE Ints code_of(const DynamicMap& map, Floats r) {
  const Ints bits = _mm512_castps_si512(r), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  Ints cell = _mm512_sub_epi32(_mm512_srli_epi32(magnitude, 16), _mm512_set1_epi32(DynamicMap::kFirstCell));
  cell = _mm512_max_epi32(_mm512_min_epi32(cell, _mm512_set1_epi32(DynamicMap::kCells - 1)), _mm512_setzero_si512());
  Ints step = pick(map.cells, cell);
  const Mask above = is_less(pick(map.bounds, step), _mm512_castsi512_ps(magnitude));
  step = _mm512_mask_add_epi32(step, above, step, _mm512_set1_epi32(1));
  const Ints zero = _mm512_set1_epi32(map.zero);
  const Ints below = _mm512_sub_epi32(zero, _mm512_min_epi32(step, zero));
  return _mm512_mask_blend_epi32(_mm512_movepi32_mask(bits), _mm512_add_epi32(zero, step), below);
}

// Rounds to bf16 stochastically: up if the lower half plus a random half carries.
TITAN_INLINE __m256i stochastic_round_to_bf16(Floats a, const uint32_t* random) {
  const Ints bits = _mm512_castps_si512(a), exponent = _mm512_set1_epi32(0x7f800000);
  const Mask special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
  const Ints moved = _mm512_add_epi32(bits, _mm512_srli_epi32(_mm512_loadu_si512(random), 16));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(special, moved, rounded_bits(a)), 16));
}
TITAN_INLINE void store_stochastic(uint16_t* to, Floats a, const uint32_t* random, All) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), stochastic_round_to_bf16(a, random));
}
TITAN_INLINE void store_stochastic(uint16_t* to, Floats a, const uint32_t* random, First first) {
  _mm256_mask_storeu_epi16(to, first.lanes, stochastic_round_to_bf16(a, random));
}

#else

TITAN_INLINE Ints load_codes(const uint8_t* from, All) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
TITAN_INLINE Ints load_codes(const uint8_t* from, First first) {
  alignas(16) uint8_t some[16] = {};
  for (int64_t i = 0; i < first.count; ++i) some[i] = from[i];
  return load_codes(some, All{});
}
TITAN_INLINE void store_codes(uint8_t* to, Ints codes, All) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}
TITAN_INLINE void store_codes(uint8_t* to, Ints codes, First first) {
  alignas(16) uint8_t some[16];
  store_codes(some, codes, All{});
  for (int64_t i = 0; i < first.count; ++i) to[i] = some[i];
}
TITAN_INLINE Floats pick(const float* table, Ints index) { return _mm256_i32gather_ps(table, index, 4); }
TITAN_INLINE Ints pick(const uint8_t* table, Ints index) {
  return _mm256_and_si256(_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index, 1),
                          _mm256_set1_epi32(0xff));
}

// Returns the code nearest to each r, which has a magnitude of at most 1.
TITAN_INLINE Ints code_of(const DynamicMap& map, Floats r) {
  const Ints bits = _mm256_castps_si256(r), magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  Ints cell = _mm256_sub_epi32(_mm256_srli_epi32(magnitude, 16), _mm256_set1_epi32(DynamicMap::kFirstCell));
  cell = _mm256_max_epi32(_mm256_min_epi32(cell, _mm256_set1_epi32(DynamicMap::kCells - 1)), _mm256_setzero_si256());
  Ints step = pick(map.cells, cell);
  const Mask above = is_less(pick(map.bounds, step), _mm256_castsi256_ps(magnitude));
  step = _mm256_sub_epi32(step, _mm256_castps_si256(above));
  const Ints zero = _mm256_set1_epi32(map.zero);
  const Ints below = _mm256_sub_epi32(zero, _mm256_min_epi32(step, zero));
  return _mm256_blendv_epi8(_mm256_add_epi32(zero, step), below, _mm256_srai_epi32(bits, 31));
}

// Rounds to bf16 stochastically: up if the lower half plus a random half carries.
TITAN_INLINE void store_stochastic(uint16_t* to, Floats a, const uint32_t* random, All) {
  const Ints bits = _mm256_castps_si256(a), exponent = _mm256_set1_epi32(0x7f800000);
  const Ints special = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent);
  const Ints drawn = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(random));
  const Ints moved = _mm256_add_epi32(bits, _mm256_srli_epi32(drawn, 16));
  const Ints upper = _mm256_srli_epi32(_mm256_blendv_epi8(moved, rounded_bits(a), special), 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)));
}
TITAN_INLINE void store_stochastic(uint16_t* to, Floats a, const uint32_t* random, First first) {
  alignas(16) uint16_t some[kLanes];
  store_stochastic(some, a, random, All{});
  for (int64_t i = 0; i < first.count; ++i) to[i] = some[i];
}

#endif

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL
