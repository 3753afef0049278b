#pragma once

// Applies SentencePiece's compiled rules of normalisation, at any place or by what a user takes for one character.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/split_pattern.h"

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

// A map of rules as the `tokenizers` package applies it: what a user takes for one character (a letter with its
// accents) is replaced as a whole when it is short and begins with what has a rule, else character by character.
// SentencePiece itself takes the longest rule at each place instead.
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
