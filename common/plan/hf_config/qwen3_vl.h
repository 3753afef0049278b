#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/models/qwen3_vl_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// The vision-language model that a config.json describes.
struct HfQwen3Vl {
  models::ModelSpec text;  // Its family is qwen3 and its flavor "config.json".
  models::Qwen3VlSpec vl;
  std::vector<std::string> notes = {};  // Settings of the file that are not applied here, for warnings.
};

// Reads the config.json of a Qwen3-VL, dense or with experts (Qwen3VLConfig and Qwen3VLMoeConfig of transformers 4.57,
// of which missing keys have the defaults). qwen3_vl_config() is the inverse. Errors: InvalidArgument naming the key
// and its value, for another model, another activation, or numbers that do not fit together.
absl::StatusOr<HfQwen3Vl> read_qwen3_vl(const nlohmann::json& config);

// Whether a config.json is that of a Qwen3-VL.
bool is_qwen3_vl(const nlohmann::json& config);

// Reads it as a model of the family qwen3_vl, for read_model(). Errors: those of read_qwen3_vl().
absl::StatusOr<HfModel> read_whole_qwen3_vl(const nlohmann::json& config);

// Returns the config.json with which transformers opens weights of this model. `language`: the entries of the language
// model (model::common_config and what its family adds), without its type and positions.
nlohmann::json qwen3_vl_config(const models::ModelSpec& text, const models::Qwen3VlSpec& spec, nlohmann::json language);

}  // namespace titan::hf_config
