#pragma once

#include <string_view>

namespace titan::text {

// What names a node, a job or a project in URLs, folders and host names: a label of RFC 1035 in small letters.
inline constexpr char kIdRule[] = "[a-z]([a-z0-9-]{0,61}[a-z0-9])?";

// Whether it matches kIdRule.
bool is_id(std::string_view id);

}  // namespace titan::text
