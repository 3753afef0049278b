#pragma once

#include <string>

#include "common/plan/models/model_spec.h"

namespace titan::models {

// What contradicts itself in a spec's numbers, naming them: "n_heads: 6 is no multiple of n_kv_heads, 4"; empty:
// nothing.
std::string inconsistency(const ModelSpec& spec);

}  // namespace titan::models
