#pragma once

// genai_config.json, by which onnxruntime-genai runs a model: its sizes, the names of inputs and outputs, and defaults
// of the search.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::checkpoint::onnx {

struct GenaiModel {
  std::string file;                  // The model's, in the same folder.
  int64_t context = 0;               // Most tokens of a row.
  nlohmann::json bos;                // A token, or null.
  std::vector<int64_t> stop_tokens;  // Those that end a text; may be empty.
};

nlohmann::json genai_config(const models::ModelSpec& spec, const GenaiModel& model);

}  // namespace titan::checkpoint::onnx
