#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/rank/data/images/taps.h"

namespace titan::images {

// Weighted sums of bytes with integer weights, rounded and clipped to bytes, as AxesFilter needs them. The compiler
// vectorises the loops, for AVX2 where the processor has it.
struct ByteFilters {
  using Sample = uint8_t;
  using Weight = int32_t;

  // Filters along a row. `taps` must outlive it.
  class Row {
   public:
    // channels: bytes of a pixel, 1 to 4.
    Row(const Taps<int32_t>& taps, size_t channels);
    // Writes pixel i of `out` as the weighted sum of the pixels of `row` that the taps of i name.
    void filter(const uint8_t* row, uint8_t* out);

   private:
    const Taps<int32_t>& taps_;
    const size_t channels_;
    std::vector<int32_t> pixels_, sums_;  // [pixels, channels]; lanes beyond the last channel may use a little more.
  };

  // Filters across rows of `size` bytes.
  class Column {
   public:
    explicit Column(size_t size) : sums_(size) {}
    // Writes the weighted sum of `count` rows to `out`.
    void filter(const uint8_t* const* rows, const int32_t* weights, int count, uint8_t* out);

   private:
    std::vector<int32_t> sums_;
  };
};

}  // namespace titan::images
