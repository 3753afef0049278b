#pragma once

#include <optional>
#include <vector>

#include "common/plan/config/raw.h"

namespace titan::config {

// The items of a list of integers, which also comes as one text, as on the command line: "4,8,12" or "[4, 8, 12]".
// Nothing for what is not a list.
std::optional<std::vector<Raw>> integers_of(const Raw& raw);

}  // namespace titan::config
