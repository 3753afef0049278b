#pragma once

#include <string>

namespace titan::host {

// This machine's name as gethostname(2) gives it, or nothing where it gives none.
std::string hostname();

}  // namespace titan::host
