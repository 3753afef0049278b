#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::data_files {

// Returns what a saved position in a dataset records about file number `file` of `files`: its name, the folder that
// contains all files, and its path in that folder, so that changes of the dataset are noticed. A number beyond the last
// means the end of the dataset.
nlohmann::json cursor_file(int64_t file, const std::vector<std::string>& files);

// Checks that a dataset still fits a saved position in its file number `file`. Accepts a dataset that was moved (the
// same path below another common folder) or that grew (the same full path). Errors: InvalidArgument when that file has
// another name, or both of its paths differ.
absl::Status check_cursor_file(const nlohmann::json& cursor, int64_t file, const std::vector<std::string>& files);

}  // namespace titan::data_files
