#include "common/base/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace titan::text {
namespace {

// Returns the length of the character at the start of `bytes`, or 0 for bytes that are not one: overlong forms,
// surrogates and numbers past U+10FFFF are invalid.
size_t character(std::string_view bytes) {
  const auto at = [&](size_t i) { return i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : uint8_t{0}; };
  const auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) { return at(i) >= low && at(i) <= high; };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    return follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    return follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t size = character(bytes);
    text.append(size == 0 ? std::string_view("\xEF\xBF\xBD") : bytes.substr(0, size));
    bytes.remove_prefix(size == 0 ? 1 : size);
  }
  return text;
}

std::string printable(std::string_view bytes, std::string_view kept) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t size = character(bytes);
    const auto first = static_cast<uint8_t>(bytes[0]);
    const bool is_control =
        first < 0x20 || first == 0x7F || (size == 2 && first == 0xC2 && static_cast<uint8_t>(bytes[1]) < 0xA0);
    const bool stays = size > 0 && (!is_control || kept.find(bytes[0]) != std::string_view::npos);
    text.append(stays ? bytes.substr(0, size) : "?");
    bytes.remove_prefix(size == 0 ? 1 : size);
  }
  return text;
}

std::string shortened(std::string text, size_t most) {
  constexpr std::string_view kMark = "...";
  if (text.size() <= most) return text;
  size_t end = most < kMark.size() ? 0 : most - kMark.size();
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text.append(kMark.substr(0, most));
}

void append_utf8(std::string& text, uint32_t code_point) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += static_cast<char>(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xE0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

namespace {

bool continues(unsigned char byte, unsigned char low = 0x80, unsigned char high = 0xBF) {
  return byte >= low && byte <= high;
}

// Returns the length of the character beyond ASCII that begins at `at`, or 0 if it is invalid. `left`: bytes from `at`
// to the end.
size_t character_length(const unsigned char* at, size_t left) {
  const unsigned char first = at[0];
  if (first >= 0xC2 && first <= 0xDF) return left >= 2 && continues(at[1]) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool whole = left >= 3 && continues(at[1], first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return whole && continues(at[2]) ? 3 : 0;
  }
  if (first < 0xF0 || first > 0xF4 || left < 4) return 0;
  const bool right = continues(at[1], first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
  return right && continues(at[2]) && continues(at[3]) ? 4 : 0;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const end = at + bytes.size();
  while (at != end) {
    if (*at < 0x80) {  // Most text has long stretches of ASCII, which are checked eight bytes at a time.
      uint64_t eight = 0;
      if (end - at >= 8 && (std::memcpy(&eight, at, 8), (eight & kHighBits) == 0)) {
        at += 8;
      } else {
        ++at;
      }
      continue;
    }
    const size_t length = character_length(at, static_cast<size_t>(end - at));
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace titan::text
