#pragma once

// Prepares text for messages: a name that is safe to print, and the shape that messages of one kind share.

#include <string>
#include <string_view>

namespace titan::text {

// The name, with what a terminal would obey as '?', and cut where it is very long: for messages.
std::string shown(const std::string& name);

// The text with each run of digits as one '#', and no more than its first 200 bytes: messages of one kind, which differ
// in a step, a rank or a count, have the same.
std::string shape_of(std::string_view text);

}  // namespace titan::text
