#include "worker/rank/model/vlm/image_text_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/status/status.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/model/open_samples.h"
#include "worker/rank/model/vlm/inputs.h"

namespace titan::model::vlm {
namespace {

at::Tensor matrix(const std::vector<int64_t>& numbers, int64_t rows) {
  return at::tensor(numbers, at::kLong).view({rows, -1});
}

}  // namespace

data::Batch to_tensors(const data::MultimodalBatch& rows, int64_t patch_values) {
  // Calls use(row, place, patch, image) for every image: its place in its row, and that of its first patch.
  const auto for_each = [&](const auto& use) {
    size_t image = 0;
    for (int64_t row = 0; row < rows.rows; ++row) {
      int64_t patch = 0;
      for (int64_t place = 0; place < rows.images_of_row[static_cast<size_t>(row)]; ++place) {
        const data::SampleImage& one = rows.images[image++];
        use(row, place, patch, one);
        patch += one.grid.patches();
      }
    }
  };
  int64_t most_images = 0, most_patches = 0;
  for_each([&](int64_t, int64_t place, int64_t patch, const data::SampleImage& image) {
    most_images = std::max(most_images, place + 1);
    most_patches = std::max(most_patches, patch + image.grid.patches());
  });
  const at::Tensor grids = at::zeros({rows.rows, most_images, 2}, at::kLong);
  const at::Tensor patches = at::zeros({rows.rows, most_patches, patch_values}, at::kFloat);
  auto* const sides = grids.mutable_data_ptr<int64_t>();
  auto* const values = patches.mutable_data_ptr<float>();
  for_each([&](int64_t row, int64_t place, int64_t patch, const data::SampleImage& image) {
    int64_t* const side = sides + (row * most_images + place) * 2;
    side[0] = image.grid.height;
    side[1] = image.grid.width;
    std::copy(image.patches.begin(), image.patches.end(), values + (row * most_patches + patch) * patch_values);
  });
  return {{data::kTokens, matrix(rows.tokens, rows.rows)},
          {data::kLabels, matrix(rows.labels, rows.rows)},
          {data::kDocuments, matrix(rows.documents, rows.rows)},
          {kPatches, patches},
          {kGrids, grids}};
}

absl::StatusOr<data::Batch> ImageTextBatches::next() {
  TITAN_ASSIGN_OR_RETURN(const data::MultimodalBatch rows, rows_->next());
  given_ += rows.rows;
  tokens_ += rows.rows * rows.seq_len;
  padding_ += std::accumulate(rows.padding_of_row.begin(), rows.padding_of_row.end(), int64_t{0});
  return to_tensors(rows, patch_values_);
}

std::optional<data::ReadingCost> ImageTextBatches::take_reading_cost() {
  data::SampleProgress progress = rows_->samples().take_progress();
  progress.rows = std::exchange(given_, 0);  // The reader counts samples, of which a row may have several.
  return reading_cost(progress);
}

std::optional<double> ImageTextBatches::take_padding() {
  if (tokens_ == 0) return std::nullopt;
  const double share = static_cast<double>(std::exchange(padding_, 0)) / static_cast<double>(tokens_);
  tokens_ = 0;
  return share;
}

}  // namespace titan::model::vlm
