#pragma once

// Tokenises as SentencePiece's own package does, its normalisation of the text included.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/io/tokenizer_files/sentencepiece.h"
#include "worker/rank/data/tokenizer/added_tokens.h"
#include "worker/rank/data/tokenizer/charsmap.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// What SentencePiece makes of a text before it looks for pieces: rules at each place, the longest first, then white
// space.
class SentencePieceNormalizer {
 public:
  // `fixed` finds the user's pieces, which stay as they are.
  SentencePieceNormalizer(const tokenizer_files::SentencePieceModel& model, Charsmap rules,
                          const AddedTokenMatcher* fixed);

  std::string apply(std::string_view text) const;

 private:
  struct Prefix {
    std::string_view text;
    size_t length;
  };
  Prefix prefix(std::string_view text) const;
  void append(std::string_view text, std::string& out) const;

  Charsmap rules_;
  const AddedTokenMatcher* fixed_;
  std::string_view space_;  // What stands for one.
  bool add_dummy_prefix_, remove_extra_;
};

// The tokens of SentencePiece's own package. A document is put between <s> and </s>, as Llama 2 has it, where the model
// has these pieces. Names of control pieces in a text are text. Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(tokenizer_files::SentencePieceModel model);

}  // namespace titan::data
