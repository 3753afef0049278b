#pragma once

// Weights in the folders that Meta and Mistral release (checkpoint/formats/meta), for an import.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/tools/weights_source.h"

namespace titan::tools {

// Opens the folder as the model `spec`. Checks all names and shapes before anything is read.
absl::StatusOr<std::unique_ptr<WeightsSource>> open_meta(storage::Files& files, const std::string& folder,
                                                         const models::ModelSpec& spec);

// Returns the model of the folder's params.json, with the vocabulary that its weights show.
absl::StatusOr<models::ModelSpec> model_of_meta(storage::Files& files, const std::string& folder);

// Returns `spec` with the numbers of params.json that a flavor leaves to its weights: positions and epsilon. `taken`
// says which, for the log; it is unchanged if none differs. FailedPrecondition, names them, if other numbers differ.
absl::StatusOr<models::ModelSpec> with_numbers_of_meta(storage::Files& files, const std::string& folder,
                                                       const models::ModelSpec& spec, std::string& taken);

}  // namespace titan::tools
