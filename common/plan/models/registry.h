#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"

namespace titan::models {

// Returns a flavor of a family: find("llama3", "8B"). Errors: InvalidArgument, naming the nearest known name and all
// names.
absl::StatusOr<ModelSpec> find(const std::string& name, const std::string& flavor);

// Return the names of all families, and all flavors of one, in table order.
std::vector<std::string> names();
std::vector<std::string> flavors(const std::string& name);

}  // namespace titan::models
