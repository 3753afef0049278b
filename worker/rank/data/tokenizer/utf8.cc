#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {

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
