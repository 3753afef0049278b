#pragma once

#include "absl/status/statusor.h"
#include "worker/model/model.h"

// Qwen 3 (arXiv 2505.09388), dense and with experts: queries and keys are normed per head before halves of them are
// rotated; small sizes read the embedding as their head.
namespace titan::model::qwen3 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model::qwen3
