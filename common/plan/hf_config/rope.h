#pragma once

#include "common/plan/hf_config/keys.h"
#include "common/plan/models/model_spec.h"

namespace titan::hf_config {

// Takes where tokens stand: rope_theta, and the scaling of positions from "rope_scaling" (transformers 4) or
// "rope_parameters" (5). `file` is the config.json as it is, `defaults` what its class takes for missing keys. What
// changes positions and cannot be computed here is refused in `file` by its key, and so is a key of these tables that
// is unknown.
void take_rope(Keys& file, const nlohmann::json& defaults, models::ModelSpec& spec);

}  // namespace titan::hf_config
