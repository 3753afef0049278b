#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

// The model that the section names, with what it changes of the flavor. Errors: those of models::find.
absl::StatusOr<models::ModelSpec> chosen_model(const Model& model);

// A line for each key that asks for rows beyond the tokens that the model's positions are made for.
std::vector<std::string> length_warnings(const JobConfig& config, const models::ModelSpec& spec);

// The changes alone, for a flavor that was found elsewhere (in a library of models).
models::ModelSpec with_choices(models::ModelSpec spec, const Model& model);

}  // namespace titan::config
