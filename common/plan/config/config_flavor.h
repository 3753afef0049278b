#pragma once

// model.flavor = "config.json": the model that a Hugging Face folder describes, in any size.

#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/load.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

inline constexpr char kConfigFlavor[] = "config.json";

// Fills in model.spec, and model.name where it is not set, from config.json in model.hf_assets_path. Does nothing for
// other flavors, or when model.spec is set already: the numbers of a submitted job stay those of its submission. Adds a
// problem when the file cannot be read, describes a model that Titan does not compute, or one of another family than
// model.name. The file's settings that are not applied become warnings.
// `reads_files` false: a missing model.spec is a problem.
void read_config_flavor(LoadedConfig& loaded, bool reads_files, std::vector<Problem>& problems);

// Returns the model of model.spec. Errors: InvalidArgument when the key is missing or holds no model.
absl::StatusOr<models::ModelSpec> spec_of_config_flavor(const ModelSection& model);

}  // namespace titan::config
