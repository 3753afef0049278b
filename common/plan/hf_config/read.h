#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// What a config.json describes.
struct Model {
  models::ModelSpec spec;               // Its flavor is "config.json".
  std::string model_type;               // "llama"; of a release that also sees, its language model's.
  std::vector<std::string> notes = {};  // What the file says and nothing here does, for warnings.
};

// The model of a Hugging Face config.json, whether or not a flavor has its numbers: the inverse of HfFamily::config,
// as transformers reads the file (keys.h). Errors: InvalidArgument names the key and its value: an
// architecture, an activation, a window or a scaling of positions that no family here has.
absl::StatusOr<Model> read_model(const nlohmann::json& config);

// Whether read_model() knows the model type.
bool reads(const std::string& model_type);

// The model type under which a spec of Titan's own families is exported.
std::string model_type_of(const models::ModelSpec& spec);

}  // namespace titan::hf_config
