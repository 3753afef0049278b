#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/vision_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// The vision tower that a config.json describes.
struct HfVision {
  models::VisionSpec spec;              // Its out_dim is 0: the file has no projector.
  std::vector<std::string> notes = {};  // Settings of the file that are not applied here, for warnings.
};

// Reads the vision tower of a Hugging Face config.json: a Siglip2VisionConfig, at the top or under "vision_config".
// Missing keys have the defaults of transformers' class. Errors: InvalidArgument naming the key and its value, for
// another kind of tower, another activation, or numbers that do not fit together.
absl::StatusOr<HfVision> read_vision(const nlohmann::json& config);

// Returns the numbers in which the file's tower differs from another one: "hidden_size 768, need 64". Empty: in none.
std::string tower_differences(const models::VisionSpec& file, const models::VisionSpec& need);

}  // namespace titan::hf_config
