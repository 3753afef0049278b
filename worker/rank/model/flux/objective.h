#pragma once

// The objective of Flux: from noise and a picture's latents, mixed at a random time, the model predicts the velocity
// that leads from one to the other (rectified flow, arXiv 2209.03003).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/models/flux.h"
#include "worker/rank/model/flux/image_batches.h"
#include "worker/rank/model/flux/job_encoders.h"
#include "worker/rank/model/flux/pictures.h"
#include "worker/rank/model/objective.h"

namespace titan::model::flux {

class FluxObjective final : public Objective {
 public:
  explicit FluxObjective(const models::FluxSpec& spec) : spec_(spec) {}

  absl::Status prepare(const config::JobConfig& config, const RankPlace& place) override;
  absl::Status prepare_shapes(const config::JobConfig& config, at::Device device) override;
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
  bool has_samples() const override { return !prompts_.empty(); }
  // Makes pictures of the first captions of the validation data (validation.save_img_count), from noise that depends on
  // debug.seed and the picture's number only.
  Samples sample(const WholeModel& model, const comm::DeviceMesh& mesh) override;

 private:
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open(const config::JobConfig& config, const DataShare& share,
                                                          bool training);
  // Reads the captions of the first `count` samples, of all if it is negative.
  void read_prompts(data::SampleSet& samples, const data::SampleOrder& order, int64_t count);

  const models::FluxSpec spec_;
  JobEncoders encoders_;
  int64_t latent_channels_ = 16, downsampling_ = 8, clip_tokens_ = 77;
  double guidance_ = 1;                      // Only models with guidance_embed read it.
  std::unique_ptr<PictureSampler> sampler_;  // Null: validation makes no pictures.
  PictureOptions pictures_;
  std::vector<std::string> prompts_;
};

}  // namespace titan::model::flux
