#pragma once

// Checks whether bytes are UTF-8, and repairs, shortens and prepares UTF-8 text for terminals.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace titan::text {

// The text with U+FFFD in place of each byte that is not part of a UTF-8 character: a message of proto3 with other
// bytes in a string ends the stream that carries it.
std::string valid_utf8(std::string_view bytes);

// For terminals: with "?" in place of each character that moves, colours or erases what is there instead of printing,
// and of each byte that is part of no character. `kept`: control characters that stay.
std::string printable(std::string_view bytes, std::string_view kept = "");

// At most `most` bytes of it, not cut inside a character. One that was longer ends in "..." within them.
std::string shortened(std::string text, size_t most);

void append_utf8(std::string& text, uint32_t code_point);

// Whether `bytes` is UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view bytes);

}  // namespace titan::text
