#pragma once

#include <optional>
#include <string_view>

#include "nlohmann/json.hpp"

namespace titan::json {

// Parses `text`, UTF-8 in the dialect of Reader; returns nothing when it is not JSON. Of duplicate keys, the last one
// wins. Integers beyond 64 bits, even negative ones, become 2^64 - 1.
std::optional<nlohmann::ordered_json> parse(std::string_view text);

}  // namespace titan::json
