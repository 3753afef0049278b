#pragma once

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::models {

// Returns a spec under the names of its members, as a checkpoint's manifest stores it.
nlohmann::json to_json(const ModelSpec& spec);

// Sets the members of `spec` that `values` has, under the names of to_json(). A table of an optional part (moe, yarn)
// changes the members that it names, of the present part or of a new one with default values; null removes the part.
// Errors: InvalidArgument naming an unknown member and the nearest known one, or a value of another type.
absl::Status set_members(const nlohmann::json& values, ModelSpec& spec);

// The inverse of to_json(): members that `values` lacks have their defaults. Errors: those of set_members().
absl::StatusOr<ModelSpec> from_json(const nlohmann::json& values);

}  // namespace titan::models
