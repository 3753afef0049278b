#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_finder.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

// A document of which the length is known and the tokens may be still to be read.
struct TokenDocument {
  StreamPosition start;
  int64_t tokens = 0;        // At least 1.
  int64_t first = 0;         // Its first token in a token set,
  std::vector<int32_t> ids;  // or all of them.
};

// Documents as tokens, one after the other, in passes when they loop.
class TokenDocuments {
 public:
  virtual ~TokenDocuments() = default;

  // The next document; nothing at the end of what does not loop. Errors: as RowSource::next() has them.
  virtual absl::StatusOr<std::optional<TokenDocument>> next() = 0;
  virtual absl::Status read(const TokenDocument& document, int64_t begin, int64_t count, int32_t* out) = 0;

  // Passes over documents that follow and have no more than so many tokens together; those that they had. Few at most
  // where each is looked up by itself; at the end of what does not loop none.
  virtual absl::StatusOr<int64_t> pass_over(int64_t most_tokens) {
    (void)most_tokens;
    return int64_t{0};
  }
  // Whether pass_over() does anything.
  virtual bool passes_over() const { return false; }

  // Where the next document starts.
  virtual StreamPosition position() const = 0;
  virtual absl::Status seek(const StreamPosition& position) = 0;
  virtual std::vector<std::string> take_warnings() = 0;
};

// What the kinds have in common.
struct TokenDocumentsOptions {
  Arrangement arrangement;  // `of` is found out.
  bool loop = true;
  int64_t row_tokens = 0;             // For the warning of few rows.
  int64_t first = 0, documents = -1;  // Of a token set only these; -1: all from `first` on.
};

// As they come.
std::unique_ptr<TokenDocuments> documents_in_order(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer,
                                                   const TokenDocumentsOptions& options);

// Shuffled text. `max_bad_lines` malformed documents a pass are left out.
std::unique_ptr<TokenDocuments> shuffled_documents(std::unique_ptr<DocumentFinder> finder, const FileKind& kind,
                                                   int64_t max_bad_lines, std::shared_ptr<Tokenizer> tokenizer,
                                                   const TokenDocumentsOptions& options);

// Of a token set, in its order or shuffled. Tokens above `max_token_id` are errors.
std::unique_ptr<TokenDocuments> documents_of_set(TokenSet set, int32_t max_token_id,
                                                 const TokenDocumentsOptions& options);

}  // namespace titan::data
