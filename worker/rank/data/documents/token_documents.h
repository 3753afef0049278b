#pragma once

// Returns documents as tokens, one after the other: text, tokenized in order or shuffled, and documents of a token set.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/documents/document_finder.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

// A document of known length. Its tokens may not have been read yet.
struct TokenDocument {
  StreamPosition start;
  int64_t tokens = 0;        // At least 1.
  int64_t first = 0;         // Its first token in a token set, or its number in the pass where tokens are read later.
  std::vector<int32_t> ids;  // All tokens, if they are read already.
};

// Documents as tokens, one after the other. If they loop, passes follow each other.
class TokenDocuments {
 public:
  virtual ~TokenDocuments() = default;

  // Returns the next document; nothing at the end if they do not loop. Errors: those of RowSource::next().
  virtual absl::StatusOr<std::optional<TokenDocument>> next() = 0;
  // Writes tokens [begin, begin + count) of the document to `out`.
  virtual absl::Status read(const TokenDocument& document, int64_t begin, int64_t count, int32_t* out) = 0;

  // Skips some of the next documents, which have at most `max_tokens` tokens in total, and returns how many tokens it
  // skipped. May skip few documents or none.
  virtual absl::StatusOr<int64_t> skip_up_to(int64_t max_tokens) {
    (void)max_tokens;
    return int64_t{0};
  }
  // Returns whether skip_up_to() is worth calling: it can skip, and the documents loop.
  virtual bool can_skip() const { return false; }

  // Return where the next document starts, and move there. Errors of seek(): InvalidArgument if the files do not have
  // that position any more.
  virtual StreamPosition position() const = 0;
  virtual absl::Status seek(const StreamPosition& position) = 0;
  virtual std::vector<std::string> take_warnings() = 0;
};

// Options of all kinds of token documents.
struct TokenDocumentsOptions {
  Arrangement arrangement;  // `of` is computed.
  bool loop = true;
  int64_t row_tokens = 0;             // For the warning about few rows.
  int64_t first = 0, documents = -1;  // Only these documents of a token set; documents = -1: `first` and all after it.
};

// Returns the documents of text in the order of its files.
std::unique_ptr<TokenDocuments> documents_in_order(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer,
                                                   const TokenDocumentsOptions& options);

// Returns documents of text, shuffled. Skips up to `max_bad_lines` malformed documents per pass.
std::unique_ptr<TokenDocuments> shuffled_documents(std::unique_ptr<DocumentFinder> finder, const FileKind& kind,
                                                   int64_t max_bad_lines, std::shared_ptr<Tokenizer> tokenizer,
                                                   const TokenDocumentsOptions& options);

// Returns the documents of a token set, in order or shuffled. A token above `max_token_id` is an error.
std::unique_ptr<TokenDocuments> documents_of_set(TokenSet set, int32_t max_token_id,
                                                 const TokenDocumentsOptions& options);

// Appends the tokens of a document from a file; tokens that are not labels are marked (label_tokens.h). Appends nothing
// if the document has a problem. Sets a problem if a text with labels cannot be encoded. InvalidArgument for a text
// without labels that the tokenizer rejects.
absl::Status encode_document_text(Tokenizer& tokenizer, DocumentText& document, std::vector<int32_t>& tokens);

// Base of the classes that tokenize text: reads tokens from TokenDocument::ids, and counts the tokens of a pass.
class TokenizedDocuments : public TokenDocuments {
 public:
  TokenizedDocuments(std::shared_ptr<Tokenizer> tokenizer, const TokenDocumentsOptions& options)
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  absl::Status read(const TokenDocument& document, int64_t begin, int64_t count, int32_t* out) override {
    std::copy_n(document.ids.begin() + begin, count, out);
    return absl::OkStatus();
  }
  std::vector<std::string> take_warnings() override { return std::exchange(warnings_, {}); }

 protected:
  // Returns no value for a text without tokens or with a problem.
  absl::StatusOr<std::optional<TokenDocument>> tokenised(DocumentText& text, const StreamPosition& start) {
    TokenDocument document{.start = start};
    TITAN_RETURN_IF_ERROR(encode_document_text(*tokenizer_, text, document.ids));
    if (!text.problem.empty()) return std::nullopt;
    document.tokens = static_cast<int64_t>(document.ids.size());
    if (document.tokens == 0) return std::nullopt;
    add(document.tokens);
    return document;
  }

  void add(int64_t tokens) {
    had_tokens_ = true;
    if (pass_tokens_ >= 0) pass_tokens_ += tokens;
  }

  absl::Status next_pass() {
    if (!had_tokens_) return no_documents(warnings_);
    const bool few = pass_tokens_ >= 0 && !warned_;
    std::string warning = few ? few_rows_warning(pass_tokens_, options_.row_tokens) : "";
    warned_ |= !warning.empty();
    if (!warning.empty()) warnings_.push_back(std::move(warning));
    ++pass_;
    pass_tokens_ = 0;
    had_tokens_ = false;
    return absl::OkStatus();
  }

  void begin_at(const StreamPosition& position) {
    pass_ = position.pass;
    had_tokens_ = position.document.document > 0;
    pass_tokens_ = had_tokens_ ? -1 : 0;
    warnings_.clear();
  }

  const std::shared_ptr<Tokenizer> tokenizer_;
  TokenDocumentsOptions options_;
  int64_t pass_ = 0;
  bool had_tokens_ = false, warned_ = false;
  int64_t pass_tokens_ = 0;  // -1: unknown, because the pass began before a seek.
  std::vector<std::string> warnings_;
};

}  // namespace titan::data
