#pragma once

// The frozen encoders and tokenizers that a job's keys name.

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/flux.h"
#include "worker/rank/model/flux/conditioner.h"
#include "worker/rank/model/flux/image_batches.h"

namespace titan::model::flux {

struct JobEncoders {
  EncoderOptions sizes;
  std::shared_ptr<CaptionTokenizers> tokenizers;
  std::unique_ptr<Conditioner> conditioner;
};

// Returns what [encoder] and training.test_mode say.
ConditionerOptions conditioner_options(const config::JobConfig& config, at::Device device);

// Loads encoders and tokenizers. InvalidArgument and NotFound name the key, also of an encoder whose sizes are not
// those that the transformer reads. With ConditionerOptions::shapes_only there are no tokenizers, and files are not
// needed.
absl::StatusOr<JobEncoders> load_encoders(const models::FluxSpec& spec, const config::JobConfig& config,
                                          const ConditionerOptions& options);

}  // namespace titan::model::flux
