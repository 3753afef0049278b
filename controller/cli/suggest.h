#pragma once

#include <string>
#include <vector>

namespace titan::cli {

// "; did you mean 'X'?" with the candidate nearest to what was typed, or nothing when none is near.
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& candidates);

}  // namespace titan::cli
