#pragma once

// The objective of vision-language models: rows of texts with images, of which each token of the text predicts the next
// one.

#include <memory>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "worker/rank/data/multimodal/samples.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/model/vlm/image_adapter.h"
#include "worker/rank/model/vlm/sample_decoder.h"

namespace titan::model::vlm {

class VlmObjective final : public Objective {
 public:
  VlmObjective(models::ModelSpec spec, std::shared_ptr<ImageAdapter> images)
      : spec_(std::move(spec)), images_(std::move(images)) {}

  // Loads the tokenizer, and checks that it and the keys of [data] fit the model.
  absl::Status prepare(const config::JobConfig& config, const RankPlace& place) override;
  absl::Status prepare_shapes(const config::JobConfig& config, const RankPlace& place) override;
  int64_t longest_row(const config::JobConfig& config) const override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig& config,
                                                                   const DataShare& share) override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                     const DataShare& share) override;
  // Has as many images of the largest size as a batch can have.
  data::Batch example(const config::JobConfig& config, int64_t rows) const override;
  // Counts the labels. The context ranks share the images of their rows. Each rank encodes some images, or a
  // placeholder, because ranks gather the tower's weights together.
  Microbatch microbatch(const data::Batch& batch, const MicrobatchOptions& options) const override;
  const char* unit() const override { return "token"; }
  int64_t units_of_training_row(const config::JobConfig& config) const override;
  int64_t units_of_validation_row(const config::JobConfig& config) const override;
  std::vector<std::string> notes(const config::JobConfig& config) const override;

 private:
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open(const config::JobConfig& config, const DataShare& share,
                                                          bool training);

  const models::ModelSpec spec_;
  const std::shared_ptr<ImageAdapter> images_;
  std::shared_ptr<ImageTextTokenizer> tokenizer_;  // Null in a dry run.
  std::vector<std::string> notes_;                 // About the files of the samples.
};

}  // namespace titan::model::vlm
