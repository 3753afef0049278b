#pragma once

#include <string>
#include <vector>

#include "common/plan/hf_config/read.h"
#include "common/plan/models/model_spec.h"

namespace titan::hf_config {

// A number that a folder's model does not share with another one, under its key in config.json.
struct Difference {
  std::string key;
  std::string there, here;  // As JSON.
  bool takeable = false;    // take_numbers() removes it.
};

// What makes the weights of `there` another model's than `here`. Left out is what weights do not depend on, and a head
// of its own where the file ties it to the embedding: such a head begins as the embedding.
std::vector<Difference> compare(const Model& there, const Model& here);

// The numbers of `from` that change results and no shape: theta and scaling of positions, which channels of a head turn
// together, and the norms' epsilon.
void take_numbers(const models::ModelSpec& from, models::ModelSpec& into);

// "num_hidden_layers 40, this model has 32; ...", a few of them.
std::string text_of(const std::vector<Difference>& differences);

}  // namespace titan::hf_config
