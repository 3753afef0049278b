#pragma once

// The objective of Flux: from noise and a picture's latents, mixed at a random time, the model predicts the velocity
// that leads from one to the other (rectified flow, arXiv 2209.03003).

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/encoders/options.h"
#include "common/plan/models/flux.h"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/model/flux/image_batches.h"
#include "worker/rank/model/flux/job_encoders.h"
#include "worker/rank/model/flux/pictures.h"
#include "worker/rank/model/objective.h"

namespace titan::model::flux {

class FluxObjective final : public Objective {
 public:
  explicit FluxObjective(const models::FluxSpec& spec) : spec_(spec) {}

  absl::Status prepare(const config::JobConfig& config, const RankPlace& place) override;
  absl::Status prepare_shapes(const config::JobConfig& config, const RankPlace& place) override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig& config,
                                                                   const DataShare& share) override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                     const DataShare& share) override;
  data::Batch example(const config::JobConfig& config, int64_t rows) const override;
  // Encodes pictures and captions, or takes stored encodings. A row of validation has a fixed time instead of a drawn
  // one.
  Microbatch microbatch(const data::Batch& batch, const MicrobatchOptions& options) const override;
  const char* unit() const override { return "token"; }  // Text and picture alike have tokens.
  int64_t units_of_training_row(const config::JobConfig& config) const override;
  int64_t units_of_validation_row(const config::JobConfig& config) const override;
  std::vector<std::string> notes(const config::JobConfig& /*config*/) const override { return notes_; }
  bool has_samples() const override { return !prompts_.empty(); }
  // Makes pictures of the first captions of the validation data (validation.save_img_count), from noise that depends on
  // debug.seed and the picture's number only.
  Samples sample(const WholeModel& model, const comm::DeviceMesh& mesh) override;

 private:
  // Loads the encoders, if the job uses them.
  absl::Status load(const config::JobConfig& config, const RankPlace& place, ConditionerOptions options);
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open(const config::JobConfig& config, const DataShare& share,
                                                          bool training);
  // Reads the captions of the first `count` samples, of all if it is negative.
  void read_prompts(data::SampleSet& samples, const data::SampleOrder& order, int64_t count);
  // Makes the rows of [training] or [validation] of samples, whose files are `found`.
  absl::StatusOr<std::shared_ptr<const RowMaker>> row_maker(const config::JobConfig& config,
                                                            const data::SampleFiles& found, bool training);
  // Draws latents from stored mean and variance.
  at::Tensor stored_latents(const at::Tensor& moments, const at::Tensor& eps) const;

  const models::FluxSpec spec_;
  JobEncoders encoders_;  // Empty if all data is stored encodings.
  at::ScalarType encoder_type_ = at::kFloat;
  std::map<std::string, std::string> marks_;  // identify_encoders() of the encoders or of the first stored encodings.
  std::string marks_of_;                      // Names what they belong to, for messages.
  encoders::AutoencoderOptions stored_;       // Scale and shift of stored latents.
  std::vector<std::string> notes_;
  int64_t latent_channels_ = 16, downsampling_ = 8, clip_tokens_ = 77;
  double guidance_ = 1;                      // Only models with guidance_embed read it.
  std::unique_ptr<PictureSampler> sampler_;  // Null: validation makes no pictures.
  PictureOptions pictures_;
  std::vector<std::string> prompts_;
};

}  // namespace titan::model::flux
