#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/io/tokenizer_files/sentencepiece.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// The tokens of SentencePiece's own package. A document is put between <s> and </s>, as Llama 2 has it, where the model
// has these pieces. Names of control pieces in a text are text. Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(tokenizer_files::SentencePieceModel model);

}  // namespace titan::data
