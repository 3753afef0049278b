#pragma once

#include <string>

#include "absl/status/status.h"

namespace titan::data {

// What was said of the file or path, and, where the hub cannot be had, what to do without it.
absl::Status with_advice(const absl::Status& status, const std::string& endpoint, const std::string& path);

}  // namespace titan::data
