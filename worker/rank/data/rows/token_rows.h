#pragma once

// Cuts rows from documents that are already tokens, in the order of the token set or shuffled.

#include <memory>
#include <string>
#include <vector>

#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

// Rows of documents that are already tokens: the same rows and positions that RowStream makes from their text, but each
// row is found and read directly. A position's offset is the document's first token in its shard, its line the
// document's number there.
class TokenRows final : public RowSource {
 public:
  struct Options {
    int64_t row_tokens = 0;
    bool loop = true;
    int32_t max_token_id = 0;           // A larger one is an error: the data has another tokenizer.
    int64_t first = 0, documents = -1;  // Only these documents; documents = -1: `first` and all after it.
  };
  static absl::StatusOr<std::unique_ptr<TokenRows>> open(TokenSet set, const Options& options);

  // Errors: DataLoss (names the file and the place); InvalidArgument for a token that the tokenizer does not have.
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
  int64_t begin_ = 0, end_ = 0;  // First token of a pass, and the one after its last.
  int64_t head_ = 0;             // First token of the next row; end_ until the next pass begins.
  int64_t pass_ = 0;
  bool warned_ = false;
  std::vector<int32_t> row_;
  std::vector<std::string> warnings_;
};

// The whole rows of documents that are already tokens: each once per pass, in a different order in each pass. A
// position is a row's number in the pass. Tokens after the last whole row are left out.
class ShuffledRows final : public RowSource {
 public:
  struct Options {
    int64_t row_tokens = 0;
    int64_t seed = 0;
    bool loop = true;
    int32_t max_token_id = 0;
    int64_t first = 0, documents = -1;  // See TokenRows.
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
  int64_t begin_ = 0, rows_ = 0;   // First token of the first row, and the number of rows in a pass.
  int64_t number_ = 0, pass_ = 0;  // Number and pass of the next row.
  std::vector<int32_t> row_;
  std::vector<std::string> warnings_;
};

}  // namespace titan::data
