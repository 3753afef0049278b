#pragma once

// The objective of Flux: from noise and a picture's latents, mixed at a random time, the model predicts the velocity
// that leads from one to the other (rectified flow, arXiv 2209.03003).

#include <memory>
#include <string>
#include <vector>

#include "common/plan/models/flux.h"
#include "worker/rank/model/flux/conditioner.h"
#include "worker/rank/model/flux/image_batches.h"
#include "worker/rank/model/objective.h"

namespace titan::model::flux {

// Cuts latents [B, C, h, w] into tokens of 2 x 2 places, [B, h/2 w/2, 4 C], in rows; each has its channels one after
// the other, with the places of one channel in rows.
at::Tensor pack(const at::Tensor& latents);
// Returns the positions [1, height/2 * width/2, 3] of such tokens: 0, row, column. fp32.
at::Tensor image_positions(int64_t height, int64_t width, at::Device device);

class FluxObjective final : public Objective {
 public:
  explicit FluxObjective(const models::FluxSpec& spec) : spec_(spec) {}

  absl::Status prepare(const config::JobConfig& config, const RankPlace& place) override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig& config,
                                                                   const DataShare& share) override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                     const DataShare& share) override;
  data::Batch example(const config::JobConfig& config, int64_t rows) const override;
  // Encodes pictures and captions. A row of validation has a fixed time instead of a drawn one.
  Microbatch microbatch(const data::Batch& batch, const MicrobatchOptions& options) const override;
  const char* unit() const override { return "token"; }  // Text and picture alike have tokens.
  int64_t units_of_training_row(const config::JobConfig& config) const override;
  int64_t units_of_validation_row(const config::JobConfig& config) const override;

 private:
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open(const config::JobConfig& config, const DataShare& share,
                                                          bool training);

  const models::FluxSpec spec_;
  std::unique_ptr<Conditioner> conditioner_;  // Null in a dry run.
  std::shared_ptr<CaptionTokenizers> tokenizers_;
  int64_t latent_channels_ = 16, downsampling_ = 8;
};

}  // namespace titan::model::flux
