#pragma once

#include <string_view>

namespace titan::text {

// Whether a project may have this name: 1 to 63 letters, digits, '-', '_' or '.'.
bool is_project_name(std::string_view name);

}  // namespace titan::text
