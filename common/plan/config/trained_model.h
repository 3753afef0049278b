#pragma once

// Derives what a job trains from its configuration: the model with its changes, and the adapters that are trained
// instead of it.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/adapters.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

// The model that the section names, with what it changes of the flavor. Errors: those of models::find.
absl::StatusOr<models::ModelSpec> chosen_model(const Model& model);

// A line for each key that asks for rows beyond the tokens that the model's positions are made for.
std::vector<std::string> length_warnings(const JobConfig& config, const models::ModelSpec& spec);

// The changes alone, for a flavor that was found elsewhere (in a library of models).
models::ModelSpec with_choices(models::ModelSpec spec, const Model& model);

// The adapters that a job trains; none: it trains the model itself.
std::optional<models::AdapterSpec> adapters_of(const JobConfig& config);

// What weights that are not trained are kept in: "float32", "bfloat16", or empty: what is computed with. They need no
// more digits than layers read of them: half the bytes of masters in float32.
std::string frozen_dtype(const JobConfig& config);

}  // namespace titan::config
