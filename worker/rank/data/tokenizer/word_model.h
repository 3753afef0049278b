#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace titan::data {

// What makes tokens of a word, which is a piece that the pre-tokenizer cut.
class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the tokens of one word.
  virtual void encode(std::string_view word, std::vector<int32_t>& tokens) = 0;
};

// What a model remembers of the words that it has met.
inline constexpr size_t kCachedWord = 48;          // Bytes of the longest word worth remembering.
inline constexpr size_t kCacheEntries = 1u << 17;  // Then the cache starts again.

}  // namespace titan::data
