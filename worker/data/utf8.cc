#include "worker/data/utf8.h"

namespace titan::data {

bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const unsigned char first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return false;
    for (size_t i = 1; i < length; ++i) {
      if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return false;
    }
    const uint32_t code_point = decode_utf8(text, at).code_point;
    const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    if (code_point < least || code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) return false;
    at += length;
  }
  return true;
}

bool is_white_space(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t white_space_begin(std::string_view text, size_t end) {
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && is_continuation(text[start])) --start;
    if (!is_white_space(decode_utf8(text, start).code_point)) break;
    end = start;
  }
  return end;
}

size_t white_space_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Decoded next = decode_utf8(text, at);
    if (!is_white_space(next.code_point)) break;
    at += next.length;
  }
  return at;
}

}  // namespace titan::data
