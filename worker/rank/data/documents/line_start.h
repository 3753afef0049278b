#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace titan::data {

// The first line of a file that is not compressed that starts at byte `offset` or behind it; the file's size if none
// does. Nothing is read behind `end`, which stands for all places from there on.
absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset,
                                   int64_t end = std::numeric_limits<int64_t>::max());

// Whether the line before the one that starts at byte `line` has nothing but spaces.
absl::StatusOr<bool> line_before_is_blank(const std::string& path, int64_t line);

}  // namespace titan::data
