#pragma once

// Checks whether a step, or a Hugging Face folder, holds weights of the job's model.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/steps/setup.h"

namespace titan::checkpoint {

enum class Use {
  kResume,   // The job resumes with the weights: every number of the model counts.
  kInitial,  // The job's first weights: positions may differ, to continue with longer texts. This gives a warning.
};

// Returns warnings, or FailedPrecondition "MODEL_MISMATCH: ...", which names the differing numbers. `path` and `remedy`
// are for its message ("set model.flavor ..."). A manifest that does not state its model passes. `larger_vocabulary`:
// so does a smaller vocabulary there.
absl::StatusOr<std::vector<std::string>> check_model(const Manifest& manifest, const models::ModelSpec& spec, Use use,
                                                     const std::string& path, const std::string& remedy,
                                                     bool larger_vocabulary = false);

// The same for the config.json next to Hugging Face weights, compared with the one that an export of this model would
// have. Both are read as transformers reads them (common/plan/hf_config), and every number that changes results counts.
// A missing file passes. A setting of the file that has no effect here gives a warning. `leeway`: which differences the
// job wants: its other_positions and larger_vocabulary.
absl::StatusOr<std::vector<std::string>> check_hf_config(storage::Files& files, const std::string& folder,
                                                         const HfMapper& mapper, const Setup& leeway = {});

// Returns whether a model takes from its weights the numbers that change results but no shape: positions and epsilon.
// Titan's flavors do. A library's flavor keeps its own, and the flavor config.json those of its file.
bool takes_numbers_from_weights(const models::ModelSpec& spec);

// Returns `spec` with these numbers from a Hugging Face folder's config.json. `taken` says which, for the log; it is
// unchanged if none differs. A config.json that is not supported or another model's changes nothing: check_hf_config()
// refuses it. Errors: those of reading it.
absl::StatusOr<models::ModelSpec> with_numbers_of_hf(storage::Files& files, const std::string& folder,
                                                     const models::ModelSpec& spec, std::string& taken,
                                                     bool larger_vocabulary = false);

// The same for a step of Titan.
models::ModelSpec with_numbers_of_step(const Manifest& manifest, const models::ModelSpec& spec);

}  // namespace titan::checkpoint
