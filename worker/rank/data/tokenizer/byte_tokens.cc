#include "worker/rank/data/tokenizer/byte_tokens.h"

#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

// Printable Latin-1 bytes stand for themselves; the other 68 take U+0100, U+0101 and so on, in order.
std::array<int16_t, 0x144> make_bytes() {
  std::array<int16_t, 0x144> bytes;
  bytes.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}

}  // namespace

std::optional<std::string> from_byte_alphabet(const std::string& spelling) {
  static const std::array<int16_t, 0x144> kBytes = make_bytes();
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const Decoded next = decode_utf8(spelling, at);
    if (next.code_point >= kBytes.size() || kBytes[next.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[next.code_point]);
    at += next.length;
  }
  return bytes;
}

}  // namespace titan::data
