#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "worker/rank/data/images/taps.h"

namespace titan::images {

// Filters an image along its rows and its columns, one after the other, each rounded to samples. Only a few rows of the
// intermediate image exist at a time.
//
// Filters: ByteFilters or WordFilters.
template <typename Filters>
class AxesFilter {
  using Sample = typename Filters::Sample;
  using AxisTaps = Taps<typename Filters::Weight>;

 public:
  // samples: [rows, width, channels] of the original; across, down: the taps of the two axes of the result. All must
  // outlive the filter.
  AxesFilter(const std::vector<Sample>& samples, int width, size_t channels, const AxisTaps& across,
             const AxisTaps& down)
      : samples_(samples.data()),
        stride_(static_cast<size_t>(width) * channels),
        channels_(channels),
        across_(across),
        down_(down),
        out_(result_row() * down.first.size()),
        rows_(down.stride) {}

  // columns_first: the order of the two filters, which shows in the result because the sums between them are rounded.
  // Returns [down.size(), across.size(), channels]. To be called once.
  std::vector<Sample> filter(bool columns_first) {
    columns_first ? filter_columns_first() : filter_rows_first();
    return std::move(out_);
  }

 private:
  size_t result_row() const { return across_.first.size() * channels_; }
  const Sample* row(int y) const { return samples_ + static_cast<size_t>(y) * stride_; }
  const auto* weights(size_t y) const { return down_.weights.data() + y * down_.stride; }

  void filter_rows_first() {
    // A row that was filtered is kept while the result may use it: rows that follow each other have other places.
    std::vector<Sample> kept(down_.stride * result_row());
    const auto place = [&](int y) { return kept.data() + static_cast<size_t>(y) % down_.stride * result_row(); };
    typename Filters::Row along(across_, channels_);
    typename Filters::Column over(result_row());
    int next = down_.begin();
    for (size_t y = 0; y < down_.first.size(); ++y) {
      const int first = down_.first[y], count = down_.count[y];
      for (; next < first + count; ++next) along.filter(row(next), place(next));
      for (int j = 0; j < count; ++j) rows_[static_cast<size_t>(j)] = place(first + j);
      over.filter(rows_.data(), weights(y), count, out_.data() + y * result_row());
    }
  }

  void filter_columns_first() {
    // Only columns that are used afterwards are filtered. They keep their places in the row.
    const size_t unused = static_cast<size_t>(across_.begin()) * channels_;
    const size_t used = static_cast<size_t>(across_.end()) * channels_ - unused;
    std::vector<Sample> filtered(unused + used);
    typename Filters::Row along(across_, channels_);
    typename Filters::Column over(used);
    for (size_t y = 0; y < down_.first.size(); ++y) {
      const int first = down_.first[y], count = down_.count[y];
      for (int j = 0; j < count; ++j) rows_[static_cast<size_t>(j)] = row(first + j) + unused;
      over.filter(rows_.data(), weights(y), count, filtered.data() + unused);
      along.filter(filtered.data(), out_.data() + y * result_row());
    }
  }

  const Sample* const samples_;
  const size_t stride_, channels_;
  const AxisTaps &across_, &down_;
  std::vector<Sample> out_;
  std::vector<const Sample*> rows_;  // The rows of one sum.
};

}  // namespace titan::images
