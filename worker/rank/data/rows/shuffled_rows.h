#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

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
