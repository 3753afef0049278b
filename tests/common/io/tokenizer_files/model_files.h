#pragma once

// Builds small tokenizer.model files of both kinds, byte by byte.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/io/tokenizer_files/sentencepiece.h"

namespace titan::data::testing {

using tokenizer_files::SentencePiece;

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(0x80 | (value & 0x7F));
  return bytes + static_cast<char>(value);
}
inline std::string number_field(int number, uint64_t value) { return varint(number << 3) + varint(value); }
inline std::string bytes_field(int number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
inline std::string little_endian(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

inline std::string piece(const std::string& text, float score,
                         SentencePiece::Type type = SentencePiece::Type::kNormal) {
  return bytes_field(1, bytes_field(1, text) + varint(2 << 3 | 5) + little_endian(std::bit_cast<uint32_t>(score)) +
                            number_field(3, static_cast<uint64_t>(type)));
}

// Returns the control pieces: <unk> 0, <s> 1, </s> 2.
inline std::string control_pieces() {
  return piece("<unk>", 0, SentencePiece::Type::kUnknown) + piece("<s>", 0, SentencePiece::Type::kControl) +
         piece("</s>", 0, SentencePiece::Type::kControl);
}

inline std::string byte_pieces() {
  std::string pieces;
  for (int byte = 0; byte < 256; ++byte) {
    pieces += piece(absl::StrCat("<0x", absl::AsciiStrToUpper(absl::StrCat(absl::Hex(byte, absl::kZeroPad2))), ">"), 0,
                    SentencePiece::Type::kByte);
  }
  return pieces;
}

// Returns a compiled normalization rule that maps "A" to "a".
inline std::string charsmap() {
  std::vector<uint32_t> units(0x43);
  units[0] = 1u << 10;                        // The root; its child for a byte is at 1 ^ byte.
  units['A' ^ 1] = 'A' | 1u << 8 | 2u << 10;  // Has a value, at 2 ^ its own index.
  units['A' ^ 1 ^ 2] = 1u << 31;              // The value 0: offset of the replacement text.
  std::string trie;
  for (const uint32_t unit : units) trie += little_endian(unit);
  return little_endian(static_cast<uint32_t>(trie.size())) + trie + std::string("a\0", 2);
}

// Returns a BPE model with byte fallback: bytes from 3; then U+2581 is 259, "a" 260, "b" 261, "ab" 262, U+2581 "ab"
// 263, the user-defined "<x>" 264.
inline std::string pair_model() {
  return control_pieces() + byte_pieces() + piece("\u2581", -4) + piece("a", -5) + piece("b", -6) + piece("ab", -1) +
         piece("\u2581ab", -2) + piece("<x>", 0, SentencePiece::Type::kUserDefined) +
         bytes_field(2, number_field(3, 2) + number_field(35, 1)) +
         bytes_field(3, bytes_field(2, "") + number_field(4, 0));
}

// Returns a unigram model without bytes: U+2581 is 3, "a" 4, "b" 5, "ab" 6, U+2581 "a" 7. It maps "A" to "a".
inline std::string unigram_model() {
  return control_pieces() + piece("\u2581", -4) + piece("a", -3) + piece("b", -3) + piece("ab", -5) +
         piece("\u2581a", -4) + bytes_field(2, number_field(3, 1)) + bytes_field(3, bytes_field(2, charsmap()));
}

// Returns a tiktoken file with the 256 bytes, then "ab" 256, " a" 257, "abab" 258.
inline std::string tiktoken_file() {
  std::string file;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&file, absl::Base64Escape(std::string(1, static_cast<char>(byte))), " ", rank++, "\n");
  }
  for (const char* token : {"ab", " a", "abab"}) absl::StrAppend(&file, absl::Base64Escape(token), " ", rank++, "\n");
  return file;
}

}  // namespace titan::data::testing
