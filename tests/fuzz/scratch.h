#pragma once

#include <string>
#include <string_view>

namespace titan::fuzz {

// Returns an in-memory folder of this process, for readers that take a path. It is removed when the process ends.
const std::string& scratch_folder();
// Replaces the file and returns its path.
std::string scratch_file(const std::string& name, std::string_view bytes);

}  // namespace titan::fuzz
