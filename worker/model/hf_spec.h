#pragma once

#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::model {

// The model that a Hugging Face config.json describes, whether or not a flavor has its numbers: the inverse of
// HfFamily::config. Its flavor is "config.json". Of a release that also sees, the language model.
// Errors: InvalidArgument names the key and what it holds (an architecture, an activation or a scaling of positions
// that no family here has).
absl::StatusOr<models::ModelSpec> spec_of_hf_config(const nlohmann::json& config);

}  // namespace titan::model
