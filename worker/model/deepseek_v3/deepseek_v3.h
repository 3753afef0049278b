#pragma once

#include "absl/status/statusor.h"
#include "worker/model/model.h"

// DeepSeek V3 (arXiv 2412.19437): latent attention, YaRN beyond the original context, experts in groups after some
// dense layers.
namespace titan::model::deepseek_v3 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model::deepseek_v3
