#pragma once

#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::testing {

// Sets numbers of the spec by their names: {"dim": 64, "moe.top_k": 2, "yarn.mscale": 0.7}. Throws on an unknown name.
void change_spec(models::ModelSpec& spec, const nlohmann::json& changes);

// A wrong number of a model that a comparison must detect.
struct Mistake {
  std::string what;
  models::ModelSpec spec;
};
// All mistakes that change the results of this spec on sequences of `seq_len` but none of its parameters' shapes.
std::vector<Mistake> mistakes(const models::ModelSpec& spec, int64_t seq_len);

}  // namespace titan::testing
