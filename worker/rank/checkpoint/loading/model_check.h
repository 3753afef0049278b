#pragma once

// Whether a step, or a Hugging Face folder, holds the weights of the model that is to have them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/manifest.h"

namespace titan::checkpoint {

enum class Use {
  kResume,   // The job goes on with the weights: every number of the model counts.
  kInitial,  // Its first weights: where tokens stand may differ, to go on with longer texts. It is worth a warning.
};

// Warnings, or the refusal that names the numbers. `path` and `remedy` are for its message ("set model.flavor ...").
// A manifest that does not say its model passes.
absl::StatusOr<std::vector<std::string>> check_model(const Manifest& manifest, const models::ModelSpec& spec, Use use,
                                                     const std::string& path, const std::string& remedy);

// The same for the config.json beside Hugging Face weights, against the one that an export of this model would have:
// both are read as transformers reads them (common/plan/hf_config), and every number that changes results counts. An
// absent file passes. What the file says and nothing here does is a warning.
absl::StatusOr<std::vector<std::string>> check_hf_config(storage::Files& files, const std::string& folder,
                                                         const HfMapper& mapper);

// Whether a model takes from its weights the numbers that change results and no shape: where tokens stand, and epsilon.
// A flavor of Titan's does. One of a library has them by its author's choice.
bool keeps_to_weights(const models::ModelSpec& spec);

// `spec` with these numbers of a Hugging Face folder's config.json. `taken` says which, for the log; it stays empty
// where none differs. A config.json that cannot be read or is another model's changes nothing: check_hf_config()
// refuses it.
absl::StatusOr<models::ModelSpec> with_numbers_of_hf(storage::Files& files, const std::string& folder,
                                                     const models::ModelSpec& spec, std::string& taken);

// The same of a step of Titan's.
models::ModelSpec with_numbers_of_step(const Manifest& manifest, const models::ModelSpec& spec);

}  // namespace titan::checkpoint
