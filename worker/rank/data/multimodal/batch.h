#pragma once

// Collates rows of samples with images into batches, as arrays that become tensors without further work.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/multimodal/samples.h"

namespace titan::data {

using MultimodalRow = std::vector<MultimodalSample>;  // Its samples, in order. An empty row is padding.

// Consecutive rows of a batch.
struct MultimodalBatch {
  int64_t rows = 0, seq_len = 0;
  std::vector<int64_t> tokens;  // [rows, seq_len]
  // [rows, seq_len]: the token that follows, or -100 where none is predicted: at the end of a sample, at tokens without
  // a label, and in padding.
  std::vector<int64_t> labels;
  // [rows, seq_len]: the sample of each token within its row. Each padding token is a document by itself.
  std::vector<int64_t> documents;
  std::vector<SampleImage> images;      // In the order of their tokens.
  std::vector<int64_t> images_of_row;   // [rows]: number of images in each row.
  std::vector<int64_t> padding_of_row;  // [rows]: number of padding tokens in each row.
};

// Collates rows of samples that passed check_sample(). Their images are moved out of them.
MultimodalBatch collate(std::vector<MultimodalRow> rows, const MultimodalOptions& options);

// Returns `count` rows of a batch from row `first` on: a data-parallel rank's share. Images are moved out of `batch`.
MultimodalBatch take_rows(MultimodalBatch& batch, int64_t first, int64_t count);

// Appends the rows of `batch` to those of `to`. Both have the same length.
void append(MultimodalBatch batch, MultimodalBatch& to);

// Returns the patches of all images one after another, [P, patch_values]. FailedPrecondition names an image that is not
// decoded.
absl::StatusOr<std::vector<float>> packed_patches(const std::vector<SampleImage>& images, int64_t patch_values);

}  // namespace titan::data
