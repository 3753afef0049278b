// tokenizer.model files, which come from a model's publisher.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::fuzz {
namespace {

// Loads a folder with this tokenizer.model. If it is valid, `text` gives valid tokens, which have a text.
void use_model(std::string_view model, std::string_view config, const std::string& text) {
  std::filesystem::remove(scratch_folder() + "/tokenizer.json");  // Left by another target; it would take precedence.
  scratch_file("tokenizer.model", model);
  scratch_file("tokenizer_config.json", config);
  const auto tokenizer = data::Tokenizer::load(scratch_folder());
  if (!tokenizer.ok()) {
    require(tokenizer.status().message().find("tokenizer") != std::string::npos, "the file is named");
    return;
  }
  std::vector<int32_t> document;
  const absl::Status encoded = (*tokenizer)->encode_document(text, document);
  require(encoded.ok() || !data::is_utf8(text) || !absl::IsInternal(encoded), "a text has tokens");
  for (const int32_t id : document) {
    require(id >= 0 && id <= (*tokenizer)->max_id(), "an existing id");
    (void)(*tokenizer)->spelling(id);
    (void)(*tokenizer)->bytes(id);
  }
  (void)(*tokenizer)->decode(document);
  (void)(*tokenizer)->decode({-1, (*tokenizer)->max_id(), INT32_MAX, INT32_MIN});
}

}  // namespace

// The input is a text and SentencePiece's encoded message.
TITAN_FUZZ(sentencepiece, 400) {
  Parts parts(bytes);
  const std::string text(parts.next());
  use_model(parts.rest(), "{}", text);
}

// The input is a text, tokenizer_config.json, and the lines of ranks.
TITAN_FUZZ(tiktoken, 300) {
  Parts parts(bytes);
  const std::string text(parts.next()), config(parts.next());
  use_model(parts.rest(), config, text);
}

}  // namespace titan::fuzz
