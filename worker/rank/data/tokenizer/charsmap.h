#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data {

// SentencePiece's compiled rules of normalisation: a trie (of the library Darts-clone) from strings to what replaces
// them. Safe to read whatever the bytes are: a damaged map replaces wrongly, never reads beyond itself.
class Charsmap {
 public:
  // Empty bytes give a map without rules. InvalidArgument when the parts do not fit into `bytes`.
  static absl::StatusOr<Charsmap> parse(std::string_view bytes);

  struct Match {
    size_t length = 0;  // Bytes of the text that are replaced; 0: no rule.
    std::string_view replacement;
  };
  // The rule for the longest, or the shortest, beginning of `text` that has one.
  Match longest(std::string_view text) const { return find(text, false); }
  Match shortest(std::string_view text) const { return find(text, true); }
  bool empty() const { return units_.empty(); }

 private:
  Match find(std::string_view text, bool first) const;
  Match match(size_t length, uint32_t at) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // Each ends with a zero byte.
};

}  // namespace titan::data
