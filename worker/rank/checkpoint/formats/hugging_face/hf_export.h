#pragma once

// Exports a step's model as Hugging Face files: weights, their index, and config.json.

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_assets.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::checkpoint {

// How the "model.*" tensors of a step become Hugging Face files. Each rank writes a share of them.
struct HfExport {
  at::ScalarType dtype = at::kFloat;
  int64_t max_file_bytes = int64_t{2} << 30;  // A file is assembled in memory.
  HfAssets assets;
  Overflow overflow = Overflow::kRefuse;
  bool float8 = false;               // Stores the matrices of layers as float8 in blocks (hf_quantize.h).
  nlohmann::json quantization = {};  // quantization_config of config.json; null: none.
};

// One file of an export, and the parameters in it.
struct HfFile {
  std::string name;  // "model-00001-of-00003.safetensors"
  std::vector<std::string> fqns;
};

// Returns the files of an export, the same on every rank. Errors: NotFound if the mapper does not know a parameter.
absl::StatusOr<std::vector<HfFile>> plan_export(const Manifest& manifest, const HfMapper& mapper,
                                                const HfExport& options);

// Returns a line for each nonzero buffer that is in no file, because weights of this family have no place for it. The
// model uses it, and other programs will compute without it.
absl::StatusOr<std::vector<std::string>> unexported_buffers(StepReader& step, const HfMapper& mapper);

// The content of a file that was written.
struct HfWritten {
  std::vector<std::string> keys;
  int64_t bytes = 0;
  std::vector<std::string> warnings;  // About values that are not finite, or that the type cannot hold.
};

// Writes one of the files as `{folder}/{name}`; returns the Hugging Face keys and bytes in it. Errors: those of reading
// the step, narrow() and write_tensors().
absl::StatusOr<HfWritten> write_export_file(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                            const HfFile& file, const HfExport& options, const std::string& folder,
                                            const std::string& name, const std::atomic<bool>* stop = nullptr);

// Returns the text of model.safetensors.index.json.
std::string hf_index(const std::vector<HfFile>& files, const std::vector<HfWritten>& written);

// Writes the index `text` to `folder` under its second name, if the mapper has one.
absl::Status write_second_index(storage::Files& files, const std::string& folder, const HfMapper& mapper,
                                const std::string& text);

// Exports everything in one process, into a new or empty folder: files, what belongs next to them, and last the index.
// Returns warnings, including those of unexported_buffers().
absl::StatusOr<std::vector<std::string>> export_folder(
    storage::Files& files, StepReader& step, const HfMapper& mapper, const HfExport& options, const std::string& folder,
    const std::function<void(const std::string& file)>& progress = {});

// Returns the ids of the tokens that begin and end a text, from the tokenizer in `folder`: "bos_token_id" and
// "eos_token_id". Null if it has none, or if `folder` is empty. Errors: those of reading it.
absl::StatusOr<nlohmann::json> token_ids(const std::string& folder);

// Returns the config.json for weights of type `dtype`. Ids that the tokenizer does not define are null in it: without
// the keys transformers uses its classes' defaults, which are ordinary tokens of another vocabulary.
nlohmann::json hf_config(nlohmann::json config, at::ScalarType dtype, const nlohmann::json& ids);

// Writes all that a Hugging Face folder has apart from its weights: config.json, the tokenizer's files, and
// generation_config.json with the ids, if there are any and the tokenizer's folder has no such file. A model without
// config gets only the assets. A config.json of diffusers ("_class_name") is written as it is, because its classes know
// no tokenizer. Returns warnings.
absl::StatusOr<std::vector<std::string>> write_config_and_assets(storage::Files& files, const std::string& folder,
                                                                 const HfMapper& mapper, const HfExport& options);

}  // namespace titan::checkpoint
