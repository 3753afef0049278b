#pragma once

// Checks whether bytes are UTF-8, and repairs, shortens and prepares UTF-8 text for terminals.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace titan::text {

// Returns the text with U+FFFD in place of each byte that is not part of a UTF-8 character. Invalid UTF-8 in a proto3
// string would end the stream that carries it.
std::string valid_utf8(std::string_view bytes);

// Returns text that is safe for terminals: "?" replaces each control character and each byte that is not part of a
// character. Control characters in `kept` stay.
std::string printable(std::string_view bytes, std::string_view kept = "");

// Returns at most `most` bytes of the text without cutting a character. A shortened text ends in "..." within the
// limit.
std::string shortened(std::string text, size_t most);

// Appends the UTF-8 encoding of `code_point`. Surrogates are encoded too, as three bytes that are not valid UTF-8.
void append_utf8(std::string& text, uint32_t code_point);

// Whether `bytes` is UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view bytes);

}  // namespace titan::text
