#pragma once

// Derives what a job trains from its configuration: a flavor with the job's changes, or adapters.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/adapters.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

// Returns the model that the section names, with its changes to the flavor. Errors: those of models::find,
// spec_of_config_flavor() and apply_model_overrides().
absl::StatusOr<models::ModelSpec> resolve_model(const ModelSection& model);

// Returns a warning for each key that sets rows longer than the model's max_seq_len.
std::vector<std::string> length_warnings(const JobConfig& config, const models::ModelSpec& spec);

// Applies the section's changes to a flavor, which may be a library's. Errors: those of apply_override().
absl::StatusOr<models::ModelSpec> apply_model_overrides(models::ModelSpec spec, const ModelSection& model);

// Whether the section changes RoPE, so that its values hold instead of those of loaded weights.
bool overrides_positions(const ModelSection& model);

// Returns the model that a job trains: `base`, its flavor without the job's changes, with the numbers that its weights
// brought (models::with_weights_numbers()), and then with the job's changes. Errors: those of apply_model_overrides().
absl::StatusOr<models::ModelSpec> settle_model(const models::ModelSpec& base, const models::ModelSpec& with_weights,
                                               const ModelSection& model);

// Returns the adapters that a job trains; nothing: it trains the model itself.
std::optional<models::AdapterSpec> adapters_of(const JobConfig& config);

// Returns the type of weights that are not trained: "float32", "bfloat16", or empty: the compute type. Frozen weights
// need no float32 master copy; the compute type usually has half the bytes.
std::string frozen_dtype(const JobConfig& config);

}  // namespace titan::config
