#pragma once

// Tokenizes as the `sentencepiece` package does, including its normalization of the text.

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

// Normalizes text as SentencePiece does before it looks for pieces: applies the longest rule at each position, then
// handles white space.
class SentencePieceNormalizer {
 public:
  // `fixed` finds the user-defined pieces, which stay unchanged. It must outlive this object.
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
  std::string_view space_;  // Replaces a space.
  bool add_dummy_prefix_, remove_extra_;
};

// Returns a tokenizer that gives the tokens of the `sentencepiece` package. A document is put between <s> and </s>, as
// in Llama 2, if the model has these pieces. Names of control pieces in a text are ordinary text. Errors:
// InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(tokenizer_files::SentencePieceModel model);

}  // namespace titan::data
