#pragma once

#include <string>

namespace titan::text {

// The name, with what a terminal would obey as '?', and cut where it is very long: for messages.
std::string shown(const std::string& name);

}  // namespace titan::text
