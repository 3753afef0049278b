#pragma once

#include <optional>
#include <string_view>

#include "nlohmann/json.hpp"

namespace titan::json {

// The value that `text` is, in UTF-8 and the dialect of Reader; nothing when it is not JSON. Of keys that occur twice
// the last counts. Whole numbers beyond 64 bits become the largest, 2^64 - 1.
std::optional<nlohmann::ordered_json> parse(std::string_view text);

}  // namespace titan::json
