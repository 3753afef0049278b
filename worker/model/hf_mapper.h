#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "worker/checkpoint/hf_mapper.h"

namespace titan::model {

// A model family's names and layouts in the form that checkpoints import and export with, config.json included.
// Unimplemented for a family without Hugging Face names.
absl::StatusOr<std::unique_ptr<checkpoint::HfMapper>> make_hf_mapper(const models::ModelSpec& spec);

}  // namespace titan::model
