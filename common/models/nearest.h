#pragma once

#include <string>
#include <vector>

namespace titan::models {

// The candidate that `given` most likely misspells (case is ignored), or "" when none is near.
std::string nearest(const std::string& given, const std::vector<std::string>& candidates);

}  // namespace titan::models
