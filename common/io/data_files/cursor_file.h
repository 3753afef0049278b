#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::data_files {

// What a position in a dataset says of the file that it is in, number `file` of `files`: its name and where it lies
// below the folder of all, so that a changed dataset is noticed. A number beyond the last is the end of the dataset.
nlohmann::json cursor_file(int64_t file, const std::vector<std::string>& files);

// Whether the dataset's files are still those of a saved position, which is in number `file`: a dataset that was moved
// has the same files below another folder; one that grew, the same files below a folder above. InvalidArgument: the
// file there has another name now, or lies elsewhere among the others.
absl::Status check_cursor_file(const nlohmann::json& cursor, int64_t file, const std::vector<std::string>& files);

}  // namespace titan::data_files
