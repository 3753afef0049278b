#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// The model that a config.json describes.
struct HfModel {
  models::ModelSpec spec;  // Its flavor is "config.json".
  std::string model_type;  // "llama"; "qwen3_vl"; for other multimodal releases, that of the language model.
  std::vector<std::string> notes = {};  // Settings of the file that are not applied here, for warnings.
};

// Reads the model of a Hugging Face config.json; no flavor needs to have the same numbers. Interprets the file as
// transformers does (keys.h), or diffusers for a Flux. A Qwen3-VL is read with its tower; of other multimodal releases
// only the language model. HfFamily::config is the inverse. Errors: InvalidArgument naming
// the key and its value, for an architecture, an activation, a window or a RoPE scaling that no family here supports.
absl::StatusOr<HfModel> read_model(const nlohmann::json& config);

// Whether read_model() supports the model type.
bool reads(const std::string& model_type);

// Returns the model type under which a spec of Titan's families is exported.
std::string model_type_of(const models::ModelSpec& spec);

}  // namespace titan::hf_config
