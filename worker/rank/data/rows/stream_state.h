#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/row_source.h"

namespace titan::data {

// A number of a state, in which nothing counts beyond 2^60: what reads it may add to it. Errors: InvalidArgument for
// anything but a number of 0 or more (names the key).
absl::StatusOr<int64_t> state_number(const nlohmann::json& object, const char* key);

// A stream position as checkpoints keep it: with the name of its file, where it lies below the folder of all, and, of a
// hub's, the commit, so that a changed dataset is noticed.
nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files);

// Errors: InvalidArgument for a missing or negative number (names it), or when the file at that place has another name
// now, lies elsewhere among the others, or is of another commit.
absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files);

}  // namespace titan::data
