#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/data/row_source.h"

namespace titan::data {

// A stream position as checkpoints keep it: with the name of its file and, of a hub's, the commit, so that a changed
// dataset is noticed.
nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files);

// Errors: InvalidArgument for a missing or negative number (names it), or when the file at that place has another name
// now, or is of another commit.
absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files);

}  // namespace titan::data
