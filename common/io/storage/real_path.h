#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::storage {

// Returns `path` with all links followed, as far as it exists; the rest stays as given. The kernel reports the path of
// what it has opened, so links that change meanwhile cannot mix two paths. Errors: InvalidArgument for a path that is
// not absolute or has ".." after a missing part, and the system's.
absl::StatusOr<std::string> real_path(const std::string& path);

// Does the same for an open descriptor.
absl::StatusOr<std::string> real_path_of(int fd);

// Returns whether the path, a result of real_path(), is one of these folders or below one.
bool lies_below(const std::string& real, const std::vector<std::string>& folders);

}  // namespace titan::storage
