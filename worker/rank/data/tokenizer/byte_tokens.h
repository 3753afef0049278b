#pragma once

// Reads and writes how vocabularies spell bytes and spaces: "<0x0A>", the space mark and GPT-2's byte alphabet.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace titan::data {

inline constexpr char kSpaceMark[] = "\u2581";  // U+2581 stands for a space.

// Returns how a vocabulary of characters spells the token of a byte, for characters without a token: "<0x0A>".
inline std::string byte_token(uint8_t byte) { return absl::StrFormat("<0x%02X>", byte); }

// Returns the byte that such a token stands for; nothing for other tokens.
inline std::optional<uint8_t> byte_of_token(std::string_view token) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

// Returns the token ids of the 256 bytes, indexed by byte; -1: no token.
template <typename Ids>
std::array<int32_t, 256> byte_token_ids(const Ids& ids) {
  std::array<int32_t, 256> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(byte_token(static_cast<uint8_t>(byte)));
    tokens[byte] = found == ids.end() ? -1 : found->second;
  }
  return tokens;
}

// Returns the bytes of a token that a file spells in GPT-2's alphabet, which has a printable stand-in for each of the
// 256 bytes ("\u0120the" is " the"). Nothing when a character is not in the alphabet.
std::optional<std::string> from_byte_alphabet(const std::string& spelling);

}  // namespace titan::data
