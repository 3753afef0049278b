#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace titan::data {

// Turns a word, which is a piece from the pre-tokenizer, into tokens.
class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the tokens of one word.
  virtual void encode(std::string_view word, std::vector<int32_t>& tokens) = 0;
};

// Limits of a model's cache of words.
inline constexpr size_t kCachedWord = 48;          // Bytes of the longest word that is cached.
inline constexpr size_t kCacheEntries = 1u << 17;  // The cache is cleared when it is full.

}  // namespace titan::data
