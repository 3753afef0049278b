#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::storage {

// Where `path` leads when all links are followed, of as much as is there; the rest as it was said. As the kernel tells
// it of what it has opened, so that it is one answer and not one for each folder on the way. Errors: InvalidArgument
// for what is not absolute, and the system's.
absl::StatusOr<std::string> real_path(const std::string& path);

// The same of an open descriptor.
absl::StatusOr<std::string> real_path_of(int fd);

// Is the path, which real_path() gave, one of these folders or below one?
bool lies_below(const std::string& real, const std::vector<std::string>& folders);

}  // namespace titan::storage
