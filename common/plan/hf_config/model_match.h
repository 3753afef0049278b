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

// A setting in which a folder's model differs from another one, under its key in config.json.
struct ConfigDifference {
  std::string key;
  std::string there, here;  // The values as JSON.
  bool takeable = false;    // Whether take_numbers() removes the difference.
  bool positions = false;   // Whether it concerns only RoPE's frequencies (SpecDifference::positions).
};

// Returns the differences that make the weights of `there` unusable for `here`. Ignores settings on which weights do
// not depend, and a separate head where the file ties it to the embedding: such a head starts as a copy of the
// embedding.
std::vector<ConfigDifference> compare(const HfModel& there, const HfModel& here);

// Copies the settings of `from` that a flavor leaves to its weights: thetas and scaling of RoPE, its channel pairing,
// the norms' epsilon, and whether a Flux has the guidance's layers (FLUX.1-dev).
void take_numbers(const models::ModelSpec& from, models::ModelSpec& into);

// Returns "num_hidden_layers 40, this model has 32; ...", at most four differences.
std::string text_of(const std::vector<ConfigDifference>& differences);

// Returns the folder with the weights of the model that is trained: in a whole pipeline of diffusers (model_index.json)
// its folder "transformer", else `folder` itself.
std::string weights_folder(storage::Files& files, const std::string& folder);

// Header of a safetensors file: 8 bytes of length (little endian), then a JSON object.
struct WeightsHeader {
  nlohmann::json tensors;
  int64_t bytes = 0;  // Size of the header with its length field; the tensors' bytes follow.
};
// Errors: those of reading; DataLoss, naming `path`, when the file has no valid header.
absl::StatusOr<WeightsHeader> read_weights_header(storage::ReadableFile& file, const std::string& path);

// Explains why the embedding in a folder of *.safetensors does not fit `spec`: "model.safetensors holds
// model.embed_tokens.weight of [200, 64], ...". Empty when it fits, or when none or several are found. Reads the
// headers of up to a hundred files. Errors: those of opening a file and of read_weights_header().
absl::StatusOr<std::string> embedding_misfit(const std::string& folder, const models::ModelSpec& spec);

}  // namespace titan::hf_config
