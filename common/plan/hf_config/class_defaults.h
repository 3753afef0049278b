#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace titan::hf_config {

// What transformers' configuration class of a model type takes for the keys that a config.json leaves out; null for a
// model type that Titan does not read. The same in transformers 4.57 and 5.24: a key whose default differs between them
// (DeepSeek V2's vocab_size) is not here, so that a file without it is refused.
nlohmann::json class_defaults(const std::string& model_type);

// The second name of a key in transformers 5 (its attribute_map), under which files may have it: {"num_local_experts",
// "num_experts"} is the second name and the one that read.cc uses. Empty names: the model type has none.
struct Alias {
  std::string second, first;
};
Alias alias_of(const std::string& model_type);

}  // namespace titan::hf_config
