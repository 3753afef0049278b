#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace titan::text {

// The text with U+FFFD in place of each byte that is not part of a UTF-8 character: a message of proto3 with other
// bytes in a string ends the stream that carries it.
std::string valid_utf8(std::string_view bytes);

void append_utf8(std::string& text, uint32_t code_point);

}  // namespace titan::text
