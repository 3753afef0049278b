#include "worker/rank/data/rows/shuffled_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/permutation.h"

namespace titan::data {

absl::StatusOr<std::unique_ptr<ShuffledRows>> ShuffledRows::open(TokenSet set, const Options& options) {
  std::unique_ptr<ShuffledRows> rows(new ShuffledRows(std::move(set), options));
  const int64_t documents = rows->set_.documents();
  const int64_t last = options.documents < 0 ? documents : std::min(documents, options.first + options.documents);
  TITAN_ASSIGN_OR_RETURN(rows->begin_, rows->set_.document_begin(options.first));
  TITAN_ASSIGN_OR_RETURN(const int64_t end, rows->set_.document_begin(last));
  rows->rows_ = (end - rows->begin_) / options.row_tokens;
  rows->row_.resize(static_cast<size_t>(options.row_tokens));
  if (std::string warning = few_rows_warning(end - rows->begin_, options.row_tokens); options.loop && !warning.empty())
    rows->warnings_.push_back(std::move(warning));
  return rows;
}

// Whether there is a next row; the next pass begins with the first one that is asked for.
absl::StatusOr<bool> ShuffledRows::settle_pass() {
  if (number_ < rows_) return true;
  if (!options_.loop) return false;
  if (rows_ == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the dataset has no whole row of ", options_.row_tokens - 1, " tokens to shuffle for this rank"));
  }
  number_ = 0;
  ++pass_;
  return true;
}

absl::StatusOr<const int32_t*> ShuffledRows::next() {
  TITAN_ASSIGN_OR_RETURN(const bool there, settle_pass());
  if (!there) return nullptr;
  const int64_t row = Permutation(rows_, options_.seed, pass_)(number_);
  const int64_t first = begin_ + row * options_.row_tokens;
  TITAN_RETURN_IF_ERROR(set_.read(first, options_.row_tokens, row_.data()));
  const auto wrong =
      std::find_if(row_.begin(), row_.end(), [&](int32_t id) { return id < 0 || id > options_.max_token_id; });
  if (wrong != row_.end()) {
    TITAN_ASSIGN_OR_RETURN(const TokenSet::Place place, set_.find(first));
    return absl::InvalidArgumentError(absl::StrCat(
        set_.paths()[place.shard], ": a row from document ", place.document, " on holds token ", *wrong,
        ", and the tokenizer's last is ", options_.max_token_id, ": the data was made with another tokenizer"));
  }
  ++number_;
  return row_.data();
}

absl::StatusOr<int64_t> ShuffledRows::skip(int64_t rows) {
  int64_t skipped = 0;
  while (skipped < rows) {
    TITAN_ASSIGN_OR_RETURN(const bool there, settle_pass());
    if (!there) break;
    const int64_t part = std::min(rows - skipped, rows_ - number_);
    number_ += part;
    skipped += part;
  }
  return skipped;
}

absl::StatusOr<StreamPosition> ShuffledRows::position() {
  StreamPosition position{.document = {.document = number_}, .pass = pass_};
  position.arrangement = {
      .shuffle = Shuffle::kRows, .seed = options_.seed, .of = rows_, .row_tokens = options_.row_tokens};
  return position;
}

absl::Status ShuffledRows::seek(const StreamPosition& position) {
  if (position.document.document > rows_) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is row ", position.document.document,
                                                   " of ", rows_, ": the dataset has changed"));
  }
  number_ = position.document.document;
  pass_ = position.pass;
  warnings_.clear();
  return absl::OkStatus();
}

std::vector<std::string> ShuffledRows::take_warnings() { return std::exchange(warnings_, {}); }

}  // namespace titan::data
