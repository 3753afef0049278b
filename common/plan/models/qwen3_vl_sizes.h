#pragma once

#include <vector>

#include "common/plan/models/model_spec.h"
#include "common/plan/models/qwen3_vl_spec.h"

namespace titan::models {

// One size of Qwen3-VL. The flavor is that of `text`.
struct Qwen3VlSize {
  ModelSpec text;
  Qwen3VlSpec vl;
};

// Returns the released dense sizes "2B", "4B" and "8B", by their config.json, and "debugmodel". Other sizes are read
// from their config.json (hf_config::read_qwen3_vl()).
std::vector<Qwen3VlSize> qwen3_vl_sizes();

}  // namespace titan::models
