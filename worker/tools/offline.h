#pragma once

// What titan-checkpoint does, apart from its command line.

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "common/models/model_spec.h"
#include "common/storage/file.h"

namespace titan::tools {

// A step-N folder, or a folder of such: what is in it. `json`: one object a line.
absl::Status inspect(storage::Files& files, const std::string& path, bool tensors, bool json, std::ostream& out);

// Reads every byte of the steps. DataLoss when anything is damaged, after listing all of it.
absl::Status verify(storage::Files& files, const std::string& path, std::ostream& out);

// The model of a step as a Hugging Face folder that did not exist before.
struct ExportOptions {
  std::string dtype = "float32";
  int64_t max_file_bytes = int64_t{2} << 30;
  std::string tokenizer;  // Folder of the tokenizer that the model was trained with; empty: config.json names no ids.
};
absl::Status export_step(storage::Files& files, const std::string& step, const std::string& target,
                         const models::ModelSpec& spec, const ExportOptions& options, std::ostream& out);

// A Hugging Face folder as a model-only step: name it in checkpoint.initial_load_path, or make it
// {dump}/{folder}/step-0.
absl::Status import_weights(storage::Files& files, const std::string& source, const std::string& step,
                            const models::ModelSpec& spec, std::ostream& out);

}  // namespace titan::tools
