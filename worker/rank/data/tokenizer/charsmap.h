#pragma once

// Applies SentencePiece's compiled normalization rules, at any position or by grapheme cluster.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/split_pattern.h"

namespace titan::data {

// SentencePiece's compiled normalization rules: a trie (library Darts-clone) from strings to their replacements. Any
// bytes are safe: a damaged map replaces wrongly, but never reads out of bounds.
class Charsmap {
 public:
  // Empty bytes give a map without rules. InvalidArgument when the parts do not fit into `bytes` or replacements are
  // not UTF-8.
  static absl::StatusOr<Charsmap> parse(std::string_view bytes);

  struct Match {
    size_t length = 0;  // Bytes of the text that are replaced; 0: no rule.
    std::string_view replacement;
  };
  // Return the rule for the longest or shortest prefix of `text` that has one.
  Match longest(std::string_view text) const { return find(text, false); }
  Match shortest(std::string_view text) const { return find(text, true); }
  bool empty() const { return units_.empty(); }

 private:
  Match find(std::string_view text, bool first) const;
  Match match(size_t length, uint32_t at) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // Each one ends with a zero byte.
};

// Applies the rules as the `tokenizers` package does. A short grapheme cluster (a letter with its accents) is replaced
// as a whole if a prefix of it has a rule, other text character by character. SentencePiece itself applies the longest
// rule at each position.
class CharsmapByCluster {
 public:
  static absl::StatusOr<std::unique_ptr<CharsmapByCluster>> create(Charsmap map);

  std::string apply(std::string_view text) const;

 private:
  CharsmapByCluster(Charsmap map, std::unique_ptr<SplitPattern> clusters);

  bool replace(std::string_view part, std::string& out) const;
  void replace_characters(std::string_view text, std::string& out) const;

  Charsmap map_;
  std::unique_ptr<SplitPattern> clusters_;
};

}  // namespace titan::data
