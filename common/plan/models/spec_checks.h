#pragma once

// Checks a ModelSpec: whether stored weights belong to it, by its numbers and not by the shapes that happen to fit, and
// whether its numbers contradict each other.

#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::models {

// A spec under the names of its members: what a checkpoint's manifest keeps of the model that it holds.
nlohmann::json to_json(const ModelSpec& spec);

// One number that two models do not share.
struct Difference {
  std::string name;         // "n_layers", "moe.top_k"
  std::string there, here;  // As JSON.
  // Only where tokens stand: rope_theta, rope_scaling, yarn. Weights may be taken over to continue with longer texts.
  bool positions = false;
};

// What makes weights of the model `stored` (of to_json, maybe of an older version: a missing member has its default)
// another model's than `spec`'s. Left out is what training chooses and weights do not depend on: the flavor's name,
// max_seq_len, mask, eos_id, depth_init, moe.load_balance_coeff.
std::vector<Difference> differences(const nlohmann::json& stored, const ModelSpec& spec);

// `spec` with the numbers of `stored` that change results and no shape: rope_theta, rope_scaling, yarn, rope, norm_eps.
// A member that `stored` lacks stays as it is.
ModelSpec with_positions(const nlohmann::json& stored, ModelSpec spec);

// "llama3 debugmodel", of to_json's form.
std::string label(const nlohmann::json& stored);

// What contradicts itself in a spec's numbers, naming them: "n_heads: 6 is no multiple of n_kv_heads, 4". Empty when
// nothing does.
std::string inconsistency(const ModelSpec& spec);

}  // namespace titan::models
