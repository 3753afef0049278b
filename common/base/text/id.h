#pragma once

// Checks the names of nodes, jobs and projects.

#include <string_view>

namespace titan::text {

// What names a node, a job or a project in URLs, folders and host names: a label of RFC 1035 in small letters.
inline constexpr char kIdRule[] = "[a-z]([a-z0-9-]{0,61}[a-z0-9])?";

// Whether it matches kIdRule.
bool is_id(std::string_view id);

// Whether a project may have this name: 1 to 63 letters, digits, '-', '_' or '.'.
bool is_project_name(std::string_view name);

}  // namespace titan::text
