#include "common/base/json/reader.h"

#include <charconv>
#include <cstdint>
#include <cstring>

#include "common/base/text/utf8.h"

namespace titan::json {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Returns nonzero if any of eight bytes is below `limit` (at most 128); bytes beyond ASCII never are (Hacker's Delight,
// 6-1).
constexpr uint64_t kOnes = 0x0101010101010101, kHighBits = 0x8080808080808080;
constexpr uint64_t has_less(uint64_t eight, uint64_t limit) { return (eight - kOnes * limit) & ~eight & kHighBits; }
constexpr uint64_t has_byte(uint64_t eight, char byte) {
  return has_less(eight ^ kOnes * static_cast<unsigned char>(byte), 1);
}

// Returns the offset of the first quote, backslash or control character at or after `at`, or the end of the text.
size_t plain_end(std::string_view text, size_t at) {
  for (uint64_t eight = 0; at + 8 <= text.size(); at += 8) {
    std::memcpy(&eight, text.data() + at, 8);
    if ((has_less(eight, 0x20) | has_byte(eight, '"') | has_byte(eight, '\\')) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x20 && text[at] != '"' && text[at] != '\\') ++at;
  return at;
}

// Returns the length of the escape at `at`, which is a backslash, or 0 when it is invalid. `wrong` is then the offset
// of the unexpected byte.
size_t escape_length(std::string_view text, size_t at, size_t& wrong) {
  wrong = at + 1;
  if (wrong >= text.size()) return 0;
  if (text[wrong] != 'u') return std::strchr("\"\\/bfnrt", text[wrong]) != nullptr && text[wrong] != '\0' ? 2 : 0;
  for (++wrong; wrong < at + 6; ++wrong) {
    if (wrong >= text.size() || !is_hex(text[wrong])) return 0;
  }
  return 6;
}

}  // namespace

Event Reader::next() {
  if (failed_) return Event::kError;
  skip_space();
  switch (expected_) {
    case Expected::kNothing:
      return at_ == text_.size() ? Event::kEnd : fail();
    case Expected::kCommaOrEnd:
      if (!is_at(',')) return end();
      ++at_;
      skip_space();
      return open_.back() == '{' ? key() : value();
    case Expected::kKeyOrEnd:
      return is_at('}') ? end() : key();
    case Expected::kValueOrEnd:
      return is_at(']') ? end() : value();
    case Expected::kValue:
      break;
  }
  return value();
}

Event Reader::fail() {
  failed_ = true;
  return Event::kError;
}

Event Reader::value() {
  if (at_ == text_.size()) return fail();
  switch (text_[at_]) {
    case '{':
    case '[':
      return begin(text_[at_]);
    case '"':
      return string(Event::kString);
    case 'n':
      return word("null", Event::kNull);
    case 't':
      return word("true", Event::kTrue);
    case 'f':
      return word("false", Event::kFalse);
    case 'N':
      return word("NaN", Event::kNumber);
    case 'I':
      return word("Infinity", Event::kNumber);
    case '-':
      if (at_ + 1 < text_.size() && text_[at_ + 1] == 'I') return word("-Infinity", Event::kNumber);
      return number();
    default:
      return number();
  }
}

Event Reader::word(std::string_view spelling, Event event) {
  token_ = text_.substr(at_, spelling.size());
  if (token_ != spelling) {
    while (at_ < text_.size() && text_[at_] == spelling[at_ - (token_.data() - text_.data())]) ++at_;
    return fail();
  }
  at_ += spelling.size();
  after_value();
  return event;
}

bool Reader::digits() {
  if (at_ == text_.size() || !is_digit(text_[at_])) return false;
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  return true;
}

Event Reader::number() {
  const size_t begin = at_;
  if (is_at('-')) ++at_;
  if (is_at('0')) {
    ++at_;
  } else if (!digits()) {
    return fail();
  }
  if (is_at('.')) {
    ++at_;
    if (!digits()) return fail();
  }
  if (is_at('e') || is_at('E')) {
    ++at_;
    if (is_at('+') || is_at('-')) ++at_;
    if (!digits()) return fail();
  }
  token_ = text_.substr(begin, at_ - begin);
  after_value();
  return Event::kNumber;
}

Event Reader::string(Event event) {
  const size_t begin = ++at_;
  has_escapes_ = false;
  while (true) {
    at_ = plain_end(text_, at_);
    if (at_ == text_.size()) return fail();
    if (text_[at_] == '"') break;
    size_t wrong = at_;
    const size_t escape = text_[at_] == '\\' ? escape_length(text_, at_, wrong) : 0;
    if (escape == 0) {
      at_ = wrong;
      return fail();
    }
    has_escapes_ = true;
    at_ += escape;
  }
  token_ = text_.substr(begin, at_ - begin);
  ++at_;
  if (event == Event::kString) after_value();
  return event;
}

Event Reader::key() {
  if (!is_at('"') || string(Event::kKey) == Event::kError) return fail();
  skip_space();
  if (!is_at(':')) return fail();
  ++at_;
  expected_ = Expected::kValue;
  return Event::kKey;
}

Event Reader::begin(char bracket) {
  open_ += bracket;
  ++at_;
  expected_ = bracket == '{' ? Expected::kKeyOrEnd : Expected::kValueOrEnd;
  return bracket == '{' ? Event::kBeginObject : Event::kBeginArray;
}

Event Reader::end() {
  const bool object = open_.back() == '{';
  if (!is_at(object ? '}' : ']')) return fail();
  open_.pop_back();
  ++at_;
  after_value();
  return object ? Event::kEndObject : Event::kEndArray;
}

void Reader::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

namespace {

bool is_high(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Returns the code unit of the escape \uXXXX at `at`, or 0 if no such escape is there.
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
      return letter;  // A quote, a backslash or a slash stands for itself.
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
