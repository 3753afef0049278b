#pragma once

// Determines what a checkpoint is and which model it holds, for programs that only run it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"
#include "worker/rank/tools/model_choice.h"

namespace titan::tools {

// A step that holds adapters without their model.
struct AdapterStep {
  storage::Files& files;
  std::string path;
};

struct ModelSource {
  checkpoint::Candidate candidate;      // A Titan step, Hugging Face weights, or a torchtitan checkpoint.
  std::optional<AdapterStep> adapters;  // Adapters to add to these weights.
  models::ModelSpec spec;
  int64_t seq_len = 0;  // Length of the training sequences, as far as it decides positions.
  std::unique_ptr<checkpoint::HfMapper> mapper;
  std::string tokenizer;             // Folder. Empty: unknown.
  nlohmann::json job;                // Configuration with which a step was trained. Null: unknown.
  std::string pipeline;              // Folder of a whole pipeline of diffusers. Empty: it is none.
  std::vector<int64_t> stop_tokens;  // Ids that end a text according to the folder, without the tokenizer's EOS.
  bool has_generation_config = false;
  std::vector<std::string> warnings;
};

// Opens a checkpoint. `path`: a step-N folder, a folder of step-N folders (the newest is used), a Hugging Face folder,
// or one of torch.distributed.checkpoint. `choice` may be empty: a step records its model, and Hugging Face weights
// have a config.json. The model below a step of adapters is `base` or, if empty, the model that the step's job used.
// Errors: NotFound (no checkpoint; explains what one is), InvalidArgument, FailedPrecondition (another model).
absl::StatusOr<ModelSource> open_source(storage::Files& files, const std::string& path, const ModelChoice& choice,
                                        const std::string& base = "");

// Reads the tokens that end a text from generation_config.json in `folder`, if the file exists and none was read
// before, and warns about its settings that are not applied. For weights without the file, `folder` is the tokenizer's
// folder. Errors: those of reading it; FailedPrecondition if it is not a JSON object.
absl::Status take_generation_config(storage::Files& files, const std::string& folder, ModelSource& source);

}  // namespace titan::tools
