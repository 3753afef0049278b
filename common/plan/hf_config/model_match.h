#pragma once

// Compares the model that a folder's config.json and weights describe with another model.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

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
