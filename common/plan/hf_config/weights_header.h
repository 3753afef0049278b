#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// The header of a safetensors file: 8 bytes of length (little endian), then a JSON object.
struct WeightsHeader {
  nlohmann::json tensors;
  int64_t bytes = 0;  // Of all of it; the tensors' bytes follow.
};
// Errors: DataLoss, names the file `path`.
absl::StatusOr<WeightsHeader> read_weights_header(storage::ReadableFile& file, const std::string& path);

// Why the embedding in a folder of *.safetensors is another model's than `spec`: "model.safetensors holds
// model.embed_tokens.weight of [200, 64], ...". Nothing where it fits, or where none or several are found. Reads the
// headers of up to a hundred files. Errors: DataLoss, names the file.
absl::StatusOr<std::string> embedding_misfit(const std::string& folder, const models::ModelSpec& spec);

}  // namespace titan::hf_config
