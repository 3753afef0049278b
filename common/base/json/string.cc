#include "common/base/json/string.h"

#include <charconv>
#include <cstdint>

#include "common/base/text/utf8.h"

namespace titan::json {
namespace {

bool is_high(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// The number of the escape \uXXXX at `at`; 0 when there is none.
uint32_t unit_at(std::string_view token, size_t at) {
  uint32_t unit = 0;
  if (at + 6 > token.size() || token[at] != '\\' || token[at + 1] != 'u') return 0;
  std::from_chars(token.data() + at + 2, token.data() + at + 6, unit, 16);
  return unit;
}

char plain_escape(char letter) {
  switch (letter) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return letter;  // A quote, a backslash, a slash.
  }
}

}  // namespace

bool unescape(std::string_view token, std::string& out) {
  bool whole = true;
  out.reserve(out.size() + token.size());
  for (size_t at = 0; at < token.size();) {
    const size_t backslash = token.find('\\', at);
    out += token.substr(at, backslash - at);
    if (backslash == std::string_view::npos) break;
    if (token[backslash + 1] != 'u') {
      out += plain_escape(token[backslash + 1]);
      at = backslash + 2;
      continue;
    }
    uint32_t unit = unit_at(token, backslash);
    at = backslash + 6;
    if (const uint32_t low = is_high(unit) ? unit_at(token, at) : 0; is_low(low)) {
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
      at += 6;
    }
    whole &= !is_high(unit) && !is_low(unit);
    text::append_utf8(out, unit);
  }
  return whole;
}

}  // namespace titan::json
