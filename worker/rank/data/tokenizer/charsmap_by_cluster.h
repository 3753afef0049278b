#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/charsmap.h"
#include "worker/rank/data/tokenizer/split_pattern.h"

namespace titan::data {

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
