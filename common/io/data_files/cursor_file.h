#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::data_files {

// Returns what a saved position in a dataset records of its file, number `file` of `files`: its name and its path below
// the folder that contains all of them, so that changes of the dataset are noticed. A number beyond the last means the
// end of the dataset.
nlohmann::json cursor_file(int64_t file, const std::vector<std::string>& files);

// Checks that a dataset still fits a saved position in its file number `file`. A moved dataset has the same files below
// another folder; one that grew has them below a folder above. Errors: InvalidArgument when that file has another name,
// or another place among the others.
absl::Status check_cursor_file(const nlohmann::json& cursor, int64_t file, const std::vector<std::string>& files);

}  // namespace titan::data_files
