#pragma once

#include <string>

namespace titan::storage {

// Where a file is that comes with the running program: beside it, in the bin folder next to its own (tests), or where
// an installation has it (lib/titan). "" when it is in none of them.
std::string installed_file(const std::string& name);

}  // namespace titan::storage
