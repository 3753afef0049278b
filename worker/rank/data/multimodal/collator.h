#pragma once

// Packs samples with images into rows, and deals rows into global batches with a limited number of images.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/multimodal/batch.h"
#include "worker/rank/data/multimodal/samples.h"

namespace titan::data {

// The sizes of a sample that packing reads.
struct SampleSize {
  int64_t tokens = 0, images = 0;
};

// Packs samples, each of which fits a row, into rows of at most seq_len tokens and max_images images: longest first,
// each in the row that it fills best (best fit decreasing). Returns the samples' indexes in each row. The result is in
// the order of the samples, within rows and across rows.
std::vector<std::vector<size_t>> pack_samples(const std::vector<SampleSize>& sizes, int64_t seq_len,
                                              int64_t max_images);

// Makes global batches of `rows` rows. A batch ends early, and is filled up with padding, when the next row would
// exceed max_images; that row begins the next batch. So every sample of the source is used once, in an order that
// depends only on the options, and samples that cannot be in any batch (check_sample()) are skipped with a warning.
//
// torchtitan drops the rows that exceed max_images, sorts a buffer by length and fills rows in turn, and loses what is
// less than a batch when the data ends. Here the last batch is filled up with padding.
class Collator {
 public:
  // InvalidArgument: check_options().
  static absl::StatusOr<Collator> open(std::unique_ptr<SampleSource> source, const MultimodalOptions& options);

  // Returns the next global batch. OutOfRange: no samples are left. InvalidArgument: 10,000 samples in a row were
  // skipped. Otherwise the source's errors.
  absl::StatusOr<MultimodalBatch> next();

  // Returns the position after the last batch: the source's position at the start of the packing window, and the
  // window's rows that were already in batches.
  nlohmann::json state() const;
  // Resumes at a result of state(), with the same options. Errors: InvalidArgument for another form, or if the window
  // has fewer rows now; the source's.
  absl::Status restore(const nlohmann::json& state);

  // Returns the warnings since the last call, one per skipped sample. A window that is read again after restore() gives
  // its warnings again.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

 private:
  Collator(std::unique_ptr<SampleSource> source, const MultimodalOptions& options)
      : source_(std::move(source)), options_(options) {}
  absl::StatusOr<bool> settle_window();
  absl::Status fill_window();

  std::unique_ptr<SampleSource> source_;
  MultimodalOptions options_;
  nlohmann::json start_;            // The source's position at the start of the window.
  std::deque<MultimodalRow> rows_;  // The window's rows that are not in a batch yet.
  int64_t given_ = 0;               // The window's rows that are.
  int64_t skipped_ = 0;             // Samples that were skipped since the last one that was not.
  std::vector<std::string> warnings_;
};

}  // namespace titan::data
