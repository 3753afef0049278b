#pragma once

#include <string>
#include <string_view>

namespace titan::text {

// The text with each run of digits as one '#', and no more than its first 200 bytes: messages of one kind, which differ
// in a step, a rank or a count, have the same.
std::string shape_of(std::string_view text);

}  // namespace titan::text
