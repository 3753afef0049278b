#pragma once

#include "common/plan/hf_config/keys.h"
#include "common/plan/models/model_spec.h"

namespace titan::hf_config {

// Reads RoPE's settings: rope_theta, and the scaling from "rope_scaling" (transformers 4) or "rope_parameters" (5).
// `file` is the unchanged config.json, `defaults` the values of its class for missing keys. Unknown keys of these
// tables, and settings that change positions but are not supported here, set the status of `file`.
void take_rope(Keys& file, const nlohmann::json& defaults, models::ModelSpec& spec);

}  // namespace titan::hf_config
