#pragma once

// Cuts rows from documents that are tokens already, in the order of the token set or shuffled.

#include <memory>
#include <string>
#include <vector>

#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

// The rows of documents that are tokens already: the same rows and positions that RowStream makes of their text, each
// found and read alone. A position's offset is the document's first token in its shard, its line the document's number
// there.
class TokenRows final : public RowSource {
 public:
  struct Options {
    int64_t row_tokens = 0;
    bool loop = true;
    int32_t max_token_id = 0;           // A larger one is an error: the tokenizer is another.
    int64_t first = 0, documents = -1;  // Only these documents; -1: all from `first` on.
  };
  static absl::StatusOr<std::unique_ptr<TokenRows>> open(TokenSet set, const Options& options);

  // Errors: DataLoss (names the file and the place); InvalidArgument for a token that the tokenizer does not know.
  absl::StatusOr<const int32_t*> next() override;
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override;

 private:
  TokenRows(TokenSet set, const Options& options) : set_(std::move(set)), options_(options) {}
  void advance(int64_t tokens);
  absl::Status check_ids();

  TokenSet set_;
  Options options_;
  int64_t begin_ = 0, end_ = 0;  // The tokens of a pass,
  int64_t head_ = 0;             // the next row's first one; end_ until the next pass begins.
  int64_t pass_ = 0;
  bool warned_ = false;
  std::vector<int32_t> row_;
  std::vector<std::string> warnings_;
};

// The whole rows of documents that are tokens, each once a pass, in another order in each pass. A position is the
// number of a row in the pass; what is behind the last whole row is left out.
class ShuffledRows final : public RowSource {
 public:
  struct Options {
    int64_t row_tokens = 0;
    int64_t seed = 0;
    bool loop = true;
    int32_t max_token_id = 0;
    int64_t first = 0, documents = -1;  // As TokenRows has them.
  };
  static absl::StatusOr<std::unique_ptr<ShuffledRows>> open(TokenSet set, const Options& options);

  absl::StatusOr<const int32_t*> next() override;
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override;

 private:
  ShuffledRows(TokenSet set, const Options& options) : set_(std::move(set)), options_(options) {}
  absl::StatusOr<bool> settle_pass();

  TokenSet set_;
  Options options_;
  int64_t begin_ = 0, rows_ = 0;   // The first row's first token, and the rows of a pass.
  int64_t number_ = 0, pass_ = 0;  // Of the next row.
  std::vector<int32_t> row_;
  std::vector<std::string> warnings_;
};

}  // namespace titan::data
