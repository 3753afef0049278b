#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "worker/rank/data/images/taps.h"

namespace titan::images {

// Weighted sums of samples of 16 bits in double, rounded (halves away from zero) and clipped, as AxesFilter needs
// them. Images with such samples have one channel.
struct WordFilters {
  using Sample = uint16_t;
  using Weight = double;

  static uint16_t to_word(double sum) { return static_cast<uint16_t>(std::clamp(std::round(sum), 0.0, 65535.0)); }

  class Row {
   public:
    Row(const Taps<double>& taps, size_t /*channels*/) : taps_(taps) {}

    void filter(const uint16_t* row, uint16_t* out) const {
      for (size_t i = 0; i < taps_.first.size(); ++i) {
        const double* const weights = taps_.weights.data() + i * taps_.stride;
        double sum = 0;
        for (int j = 0; j < taps_.count[i]; ++j) sum += row[taps_.first[i] + j] * weights[j];
        out[i] = to_word(sum);
      }
    }

   private:
    const Taps<double>& taps_;
  };

  class Column {
   public:
    explicit Column(size_t size) : size_(size) {}

    void filter(const uint16_t* const* rows, const double* weights, int count, uint16_t* out) const {
      for (size_t i = 0; i < size_; ++i) {
        double sum = 0;
        for (int j = 0; j < count; ++j) sum += rows[j][i] * weights[j];
        out[i] = to_word(sum);
      }
    }

   private:
    const size_t size_;
  };
};

}  // namespace titan::images
