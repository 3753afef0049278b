#pragma once

// Whether a step, or a Hugging Face folder, holds the weights of the model that is to have them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "common/storage/file.h"
#include "worker/checkpoint/hf_mapper.h"
#include "worker/checkpoint/manifest.h"

namespace titan::checkpoint {

// Stands in the message of a status that says so; the code is FailedPrecondition.
inline constexpr char kModelMismatch[] = "MODEL_MISMATCH: ";

enum class Use {
  kResume,   // The job goes on with the weights: every number of the model counts.
  kInitial,  // Its first weights: where tokens stand may differ, to go on with longer texts. It is worth a warning.
};

// Warnings, or the refusal that names the numbers. `path` and `remedy` are for its message ("set model.flavor ...").
// A manifest that does not say its model passes.
absl::StatusOr<std::vector<std::string>> check_model(const Manifest& manifest, const models::ModelSpec& spec, Use use,
                                                     const std::string& path, const std::string& remedy);

// The same for the config.json beside Hugging Face weights, against the one that an export of this model would have.
// Keys that only one of them has are ignored, and so is an absent file. Whatever shapes the mathematics is refused,
// except how positions are scaled and the norms' epsilon, which flavors of torchtitan have from elsewhere: warnings.
absl::StatusOr<std::vector<std::string>> check_hf_config(storage::Files& files, const std::string& folder,
                                                         const HfMapper& mapper);

}  // namespace titan::checkpoint
