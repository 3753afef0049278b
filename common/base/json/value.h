#pragma once

#include <optional>
#include <string_view>

#include "nlohmann/json.hpp"

namespace titan::json {

// Parses `text`, UTF-8 in the dialect of Reader; returns nothing when it is not JSON. The last of duplicate keys
// counts. Integers beyond 64 bits become the largest, 2^64 - 1.
std::optional<nlohmann::ordered_json> parse(std::string_view text);

}  // namespace titan::json
