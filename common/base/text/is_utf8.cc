#include "common/base/text/is_utf8.h"

#include <cstdint>
#include <cstring>

namespace titan::text {
namespace {

bool continues(unsigned char byte, unsigned char low = 0x80, unsigned char high = 0xBF) {
  return byte >= low && byte <= high;
}

// The bytes of the character beyond ASCII that begins at `at`; 0: none does. `left`: bytes from there on.
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
    if (*at < 0x80) {  // Most text is ASCII for long stretches, which go by eight.
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
