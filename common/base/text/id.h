#pragma once

// Checks the names of nodes, jobs and projects.

#include <string_view>

namespace titan::text {

// Rule for node ids, job ids and the projects of new jobs, which appear in URLs, folders and host names: an RFC 1035
// label in lower case.
inline constexpr char kIdRule[] = "[a-z]([a-z0-9-]{0,61}[a-z0-9])?";

// Whether `id` matches kIdRule.
bool is_id(std::string_view id);

// Whether a request may name this project: 1 to 63 letters, digits, '-', '_' or '.'.
bool is_project_name(std::string_view name);

}  // namespace titan::text
