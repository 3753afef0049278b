#pragma once

// Checks a ModelSpec: whether stored weights belong to it, by its numbers rather than by shapes that happen to match,
// and whether its numbers contradict each other.

#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "common/plan/models/spec_json.h"
#include "nlohmann/json.hpp"

namespace titan::models {

// One member in which two models differ.
struct SpecDifference {
  std::string name;         // "n_layers", "moe.top_k"
  std::string there, here;  // The values as JSON.
  // Whether the member concerns only RoPE: its thetas, rope_scaling, yarn. Weights can then be reused to train on
  // longer texts.
  bool positions = false;
};

// Returns the differences that make weights of the model `stored` (from to_json(), possibly of an older version: a
// missing member has its default) unusable for `spec`. Ignores training choices on which weights do not depend: the
// flavor's name, max_seq_len, mask, eos_id, depth_init, moe.load_balance_coeff.
std::vector<SpecDifference> differences(const nlohmann::json& stored, const ModelSpec& spec);

// Returns `spec` with the members of `stored` that a flavor leaves to its weights: rope_theta,
// window_rope_theta, rope_scaling, yarn, rope, norm_eps, and the guidance of a Flux. A member that `stored` lacks is
// unchanged.
ModelSpec with_weights_numbers(const nlohmann::json& stored, ModelSpec spec);

// Returns the name and flavor in `stored` (from to_json()), such as "llama3 debugmodel"; "?" for a missing one.
std::string label(const nlohmann::json& stored);

// Describes the first number of a spec that is invalid or contradicts another: "dim: 0 is not above 0". Empty if all
// are consistent.
std::string inconsistency(const ModelSpec& spec);

}  // namespace titan::models
