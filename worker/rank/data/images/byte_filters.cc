#include "worker/rank/data/images/byte_filters.h"

#include <algorithm>
#include <cstring>

// A function that is compiled twice, and run as the version for AVX2 where the processor has it. The choice is made
// here rather than by the loader (target_clones), because sanitizers cannot run before the loader is done.
#if defined(__x86_64__)
#define TITAN_BEST(function, ...) (have_avx2 ? function##_avx2(__VA_ARGS__) : function(__VA_ARGS__))
#else
#define TITAN_BEST(function, ...) function(__VA_ARGS__)
#endif
#define TITAN_INLINE [[gnu::always_inline]] inline

namespace titan::images {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);
constexpr size_t kLanes = 4;
using Lanes = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));  // A type of GCC and clang.

TITAN_INLINE void widen(const uint8_t* bytes, size_t size, int32_t* out) {
  for (size_t i = 0; i < size; ++i) out[i] = bytes[i];
}

TITAN_INLINE void narrow(const int32_t* sums, size_t size, uint8_t* out) {
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<uint8_t>(std::clamp(sums[i] >> kWeightBits, 0, 255));
}

// The lanes are the channels of a pixel. If it has fewer than four, the other lanes hold parts of the next pixel, and
// the next store overwrites what they add up to.
template <size_t channels>
TITAN_INLINE void sum_pixels(const int32_t* pixels, const Taps<int32_t>& taps, int32_t* sums) {
  for (size_t i = 0; i < taps.first.size(); ++i, sums += channels) {
    const int32_t* pixel = pixels + static_cast<size_t>(taps.first[i]) * channels;
    const int32_t* const weights = taps.weights.data() + i * taps.stride;
    Lanes sum = {kHalf, kHalf, kHalf, kHalf};
    for (int j = 0; j < taps.count[i]; ++j, pixel += channels) {
      Lanes lanes;
      std::memcpy(&lanes, pixel, sizeof lanes);
      sum += lanes * weights[j];
    }
    std::memcpy(sums, &sum, sizeof sum);
  }
}

template <>
TITAN_INLINE void sum_pixels<1>(const int32_t* pixels, const Taps<int32_t>& taps, int32_t* sums) {
  for (size_t i = 0; i < taps.first.size(); ++i) {
    const int32_t* const pixel = pixels + taps.first[i];
    const int32_t* const weights = taps.weights.data() + i * taps.stride;
    int32_t sum = kHalf;
    for (int j = 0; j < taps.count[i]; ++j) sum += pixel[j] * weights[j];
    sums[i] = sum;
  }
}

TITAN_INLINE void filter_pixels(const uint8_t* row, size_t channels, const Taps<int32_t>& taps, int32_t* pixels,
                                int32_t* sums, uint8_t* out) {
  const size_t unused = static_cast<size_t>(taps.begin()) * channels;
  widen(row + unused, static_cast<size_t>(taps.end()) * channels - unused, pixels + unused);
  if (channels == 1) sum_pixels<1>(pixels, taps, sums);
  if (channels == 2) sum_pixels<2>(pixels, taps, sums);
  if (channels == 3) sum_pixels<3>(pixels, taps, sums);
  if (channels == 4) sum_pixels<4>(pixels, taps, sums);
  narrow(sums, taps.first.size() * channels, out);
}

// Takes two rows at a time, which halves the traffic of the sums.
TITAN_INLINE void sum_rows(const uint8_t* const* rows, const int32_t* weights, int count, size_t size, int32_t* sums) {
  std::fill_n(sums, size, kHalf);
  for (int j = 0; j + 1 < count; j += 2) {
    const uint8_t *const first = rows[j], *const second = rows[j + 1];
    for (size_t i = 0; i < size; ++i) sums[i] += first[i] * weights[j] + second[i] * weights[j + 1];
  }
  if (count % 2 == 0) return;
  const uint8_t* const last = rows[count - 1];
  for (size_t i = 0; i < size; ++i) sums[i] += last[i] * weights[count - 1];
}

TITAN_INLINE void filter_bytes(const uint8_t* const* rows, const int32_t* weights, int count, size_t size,
                               int32_t* sums, uint8_t* out) {
  sum_rows(rows, weights, count, size, sums);
  narrow(sums, size, out);
}

#if defined(__x86_64__)
const bool have_avx2 = __builtin_cpu_supports("avx2");

__attribute__((target("avx2"))) void filter_pixels_avx2(const uint8_t* row, size_t channels, const Taps<int32_t>& taps,
                                                        int32_t* pixels, int32_t* sums, uint8_t* out) {
  filter_pixels(row, channels, taps, pixels, sums, out);
}

__attribute__((target("avx2"))) void filter_bytes_avx2(const uint8_t* const* rows, const int32_t* weights, int count,
                                                       size_t size, int32_t* sums, uint8_t* out) {
  filter_bytes(rows, weights, count, size, sums, out);
}
#endif

}  // namespace

ByteFilters::Row::Row(const Taps<int32_t>& taps, size_t channels)
    : taps_(taps),
      channels_(channels),
      pixels_(static_cast<size_t>(taps.end()) * channels + kLanes),
      sums_(taps.first.size() * channels + kLanes) {}

void ByteFilters::Row::filter(const uint8_t* row, uint8_t* out) {
  TITAN_BEST(filter_pixels, row, channels_, taps_, pixels_.data(), sums_.data(), out);
}

void ByteFilters::Column::filter(const uint8_t* const* rows, const int32_t* weights, int count, uint8_t* out) {
  TITAN_BEST(filter_bytes, rows, weights, count, sums_.size(), sums_.data(), out);
}

}  // namespace titan::images
