#pragma once

#include <string>
#include <string_view>

namespace titan::fuzz {

// A folder in memory, of this process alone, for readers that take a path. Removed at the end of the process.
const std::string& scratch_folder();
// Replaces the file; its path.
std::string scratch_file(const std::string& name, std::string_view bytes);

}  // namespace titan::fuzz
