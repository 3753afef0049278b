#pragma once

#include <string>
#include <string_view>

namespace titan::scheduler {

// Bytes that compare as people count: "n2" before "n10". Different for different texts.
std::string natural_key(std::string_view text);

// Orders nodes by where they stand and then by name; different for different nodes.
std::string node_key(std::string_view domain, std::string_view name);

}  // namespace titan::scheduler
