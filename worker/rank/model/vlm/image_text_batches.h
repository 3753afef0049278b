#pragma once

// Batches of rows of texts with images, as named tensors.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/data/multimodal/batch.h"
#include "worker/rank/model/vlm/row_dealer.h"

namespace titan::model::vlm {

// Returns the rows as tensors by rows: data::kTokens, kLabels and kDocuments, kPatches and kGrids.
data::Batch to_tensors(const data::MultimodalBatch& rows, int64_t patch_values);

// Batches of one data-parallel rank.
class ImageTextBatches final : public data::BatchSource {
 public:
  ImageTextBatches(std::unique_ptr<RowDealer> rows, int64_t patch_values)
      : rows_(std::move(rows)), patch_values_(patch_values) {}

  absl::StatusOr<data::Batch> next() override;
  nlohmann::json state() const override { return rows_->state(); }
  absl::Status restore(const nlohmann::json& state) override { return rows_->restore(state); }
  // Counts only this rank's rows.
  std::optional<double> take_padding() override;
  std::vector<std::string> take_warnings() override { return rows_->take_warnings(); }
  bool warns_alike() const override { return rows_->reads_all_samples(); }
  int64_t own_unusable() const override { return warns_alike() ? 0 : rows_->samples().own_bad_samples(); }
  absl::Status set_unusable(int64_t of_all_ranks) override {
    return warns_alike() ? absl::OkStatus() : rows_->samples().set_bad_samples(of_all_ranks);
  }
  std::optional<int64_t> unusable() const override { return rows_->samples().bad_samples(); }
  // Counts this rank's rows.
  std::optional<data::ReadingCost> take_reading_cost() override;

 private:
  const std::unique_ptr<RowDealer> rows_;
  const int64_t patch_values_;
  int64_t tokens_ = 0, padding_ = 0;  // Since take_padding().
  int64_t given_ = 0;                 // Rows since take_reading_cost().
};

}  // namespace titan::model::vlm
