#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::data {

// The first line of a file that is not compressed that starts at byte `offset` or behind it; the file's size if none
// does.
absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset);

}  // namespace titan::data
