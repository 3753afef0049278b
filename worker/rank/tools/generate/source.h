#pragma once

// What a checkpoint is and which model it holds, for programs that only run it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
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
  checkpoint::Candidate candidate;      // A step of Titan, Hugging Face weights, or torchtitan's own.
  std::optional<AdapterStep> adapters;  // To be added to these weights.
  models::ModelSpec spec;
  int64_t seq_len = 0;  // Of the training sequences, as far as they decide about positions.
  std::unique_ptr<checkpoint::HfMapper> mapper;
  std::string tokenizer;             // Folder; empty: nothing says.
  std::vector<int64_t> stop_tokens;  // That end a text, as the folder says; the tokenizer's own is not among them.
  bool has_generation_config = false;
  std::vector<std::string> warnings;
};

// `path`: a step-N folder, a folder of such (the newest), a Hugging Face folder, or one of
// torch.distributed.checkpoint. A choice may be left empty: a step says its model, and beside Hugging Face weights
// config.json does. The model beneath a step of adapters is `base`, or where the step's job had it from. Errors:
// NotFound (no checkpoint there; says what one is), InvalidArgument, FailedPrecondition (another model's).
absl::StatusOr<ModelSource> open_source(storage::Files& files, const std::string& path, const ModelChoice& choice,
                                        const std::string& base = "");

// Takes the tokens that end a text from generation_config.json in `folder`, if it is there and none was taken before,
// and warns of its settings that are not applied here. Beside weights that do not have one it is the tokenizer's
// folder. Errors: those of reading it; FailedPrecondition where it is not a JSON object.
absl::Status take_generation_config(storage::Files& files, const std::string& folder, ModelSource& source);

}  // namespace titan::tools
