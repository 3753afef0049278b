#pragma once

#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::testing {

// Sets numbers of the spec by their names: {"dim": 64, "moe.top_k": 2, "yarn.mscale": 0.7}. Throws on an unknown name.
void change_spec(models::ModelSpec& spec, const nlohmann::json& changes);

// One thing that a model must not get wrong without a comparison noticing.
struct Mistake {
  std::string what;
  models::ModelSpec spec;
};
// All that change what a model of this spec computes on sequences of `seq_len`, and none of its parameters.
std::vector<Mistake> mistakes(const models::ModelSpec& spec, int64_t seq_len);

}  // namespace titan::testing
