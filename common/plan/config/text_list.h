#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"

namespace titan::config {

// A list of strings that came as one text, as on the command line: a JSON array ('["a, b", "c"]') when it stands in
// brackets, else its items between commas. Complains of brackets around what is not a JSON array of strings.
std::optional<Complaint> read_text_list(const std::string& text, std::vector<std::string>& items);

}  // namespace titan::config
