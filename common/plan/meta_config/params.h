#pragma once

// Reads the params.json that Meta (Llama 2, 3 and 4) and Mistral release next to their own weights, consolidated.*.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::meta_config {

inline constexpr char kParamsName[] = "params.json";

// The model that a params.json describes.
struct MetaModel {
  models::ModelSpec spec;  // Its family is llama3 or llama4, its flavor "config.json".
  // Whether the file states the numbers that Meta's programs partly keep in their code. If it does not, the spec has
  // those programs' values, and a flavor's own values fit too.
  bool states_scaling = true;           // How far positions are stretched (rope_scaling).
  bool states_temperature = true;       // The temperature of queries without positions.
  std::vector<std::string> notes = {};  // Parts of the file that are not applied here, for the log.
};

// Reads a params.json, `params`. `vocab_size`: the number of rows of the embedding, for files that state none (-1 in
// Llama 2's); 0: unknown. Errors: InvalidArgument, names the key and its value, for an unknown key, a setting that no
// family here supports, numbers that contradict each other, and a vocabulary of unknown size.
absl::StatusOr<MetaModel> read_params(const nlohmann::json& params, int64_t vocab_size = 0);

}  // namespace titan::meta_config
