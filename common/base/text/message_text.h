#pragma once

// Prepares text for messages: a name that is safe to print, and the shape that messages of one kind share.

#include <string>
#include <string_view>

namespace titan::text {

// Returns the name for messages: '?' replaces bytes that are not printable ASCII, and names over 200 bytes are cut.
std::string printable_name(const std::string& name);

// Returns the text with each run of digits replaced by one '#', cut to 200 bytes. Messages of one kind, which differ in
// a step, a rank or a count, have the same shape.
std::string shape_of(std::string_view text);

// Text before the count that the controller adds to a repeated message. titanctl compares messages without the count.
inline constexpr char kRepetitions[] = " (reported ";

}  // namespace titan::text
