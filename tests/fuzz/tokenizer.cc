// A tokenizer's files, and training texts.

#include "worker/rank/data/tokenizer/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/tokenizer/split_pattern.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::fuzz {

// The input is tokenizer.json, tokenizer_config.json and a text.
TITAN_FUZZ(tokenizer, 400) {
  Parts parts(bytes);
  scratch_file("tokenizer.json", parts.next());
  scratch_file("tokenizer_config.json", parts.next());
  const std::string text(parts.rest());
  const auto tokenizer = data::Tokenizer::load(scratch_folder());
  if (!tokenizer.ok()) return;
  std::vector<int32_t> tokens, document;
  const absl::Status encoded = (*tokenizer)->encode(text, tokens);
  require(encoded.ok() || !data::is_utf8(text) || !tokens.empty() || absl::IsInvalidArgument(encoded),
          "a text has tokens");
  (void)(*tokenizer)->encode_document(text, document);
  for (const int32_t id : document) require(id >= 0 && id <= (*tokenizer)->max_id(), "an existing id");
  (void)(*tokenizer)->decode(document);
  (void)(*tokenizer)->decode({-1, (*tokenizer)->max_id(), INT32_MAX, INT32_MIN});
}

// The input is the pattern that splits a text into words, and the text.
TITAN_FUZZ(split_pattern, 800) {
  Parts parts(bytes);
  const uint8_t options = parts.byte();
  const std::string pattern(parts.next()), text(parts.rest());
  const auto compiled = data::SplitPattern::compile(
      pattern, {options % 2 == 0 ? data::SplitPattern::Behavior::kIsolated : data::SplitPattern::Behavior::kRemoved,
                (options & 2) != 0, (options & 4) != 0});
  if (!compiled.ok() || !data::is_utf8(text)) return;
  std::string pieces;
  const absl::Status split = (*compiled)->split(text, [&pieces](std::string_view piece) {
    pieces += piece;
    return absl::OkStatus();
  });
  if (split.ok() && options % 2 == 0) require(pieces == text, "pieces that are not removed add up to the text");
}

// JSON lines, plain or compressed.
TITAN_FUZZ(documents, 400) {
  Parts parts(bytes);
  static constexpr const char* kEndings[] = {"documents.jsonl", "documents.jsonl.gz", "documents.jsonl.zst"};
  const std::string path = scratch_file(kEndings[parts.byte() % 3], parts.rest());
  data::DocumentReader reader({.files = {path}, .kind = {}, .share = {}, .max_bad_lines = 3});
  int64_t count = 0;
  data::DocumentPosition second;
  std::string text;
  for (;; ++count) {
    const data::DocumentPosition position = reader.position();
    const auto document = reader.next();
    if (!document.ok() || !document->has_value()) break;
    require((*document)->position.offset >= position.offset, "documents follow each other");
    if (count == 1) second = (*document)->position, text = (*document)->text;
  }
  (void)reader.take_warnings();
  if (count < 2) return;
  data::DocumentReader again({.files = {path}, .kind = {}, .share = {}, .max_bad_lines = 3});
  require(again.seek(second, 0).ok(), "a position is found again");
  const auto found = again.next();
  require(found.ok() && found->has_value() && (*found)->text == text, "the document at a position is found again");
}

}  // namespace titan::fuzz
