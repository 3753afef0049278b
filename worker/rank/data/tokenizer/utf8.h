#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/text/utf8.h"

namespace titan::data {

// A character of a text.
struct Decoded {
  uint32_t code_point;
  uint32_t length;  // In bytes.
};

// Returns the character at `at` of valid UTF-8.
inline Decoded decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Returns whether the byte does not begin a character.
inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

using text::is_utf8;

// Returns whether the character has Unicode's property White_Space.
bool is_white_space(uint32_t code_point);

// Return where the white space that ends at `end` begins, and where the white space that begins at `at` ends, in valid
// UTF-8.
size_t white_space_begin(std::string_view text, size_t end);
size_t white_space_end(std::string_view text, size_t at);

}  // namespace titan::data
