#include "worker/rank/data/rows/token_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "worker/rank/data/documents/permutation.h"

namespace titan::data {

absl::StatusOr<std::unique_ptr<TokenRows>> TokenRows::open(TokenSet set, const Options& options) {
  std::unique_ptr<TokenRows> rows(new TokenRows(std::move(set), options));
  const int64_t documents = rows->set_.documents();
  const int64_t last = options.documents < 0 ? documents : std::min(documents, options.first + options.documents);
  TITAN_ASSIGN_OR_RETURN(rows->begin_, rows->set_.document_begin(options.first));
  TITAN_ASSIGN_OR_RETURN(rows->end_, rows->set_.document_begin(last));
  rows->head_ = rows->begin_;
  rows->row_.resize(static_cast<size_t>(options.row_tokens));
  return rows;
}

absl::StatusOr<const int32_t*> TokenRows::next() {
  if (end_ <= begin_) {
    if (!options_.loop) return nullptr;
    return absl::InvalidArgumentError("the dataset has no token for this rank");
  }
  if (!options_.loop && head_ + options_.row_tokens > end_) return nullptr;
  int64_t at = head_ == end_ && options_.loop ? begin_ : head_;
  for (int64_t filled = 0; filled < options_.row_tokens;) {
    const int64_t part = std::min(options_.row_tokens - filled, end_ - at);
    TITAN_RETURN_IF_ERROR(set_.read(at, part, row_.data() + filled));
    filled += part;
    at = begin_;  // Continue at the beginning after the end.
  }
  TITAN_RETURN_IF_ERROR(check_ids());
  advance(options_.row_tokens);
  return row_.data();
}

absl::StatusOr<int64_t> TokenRows::skip(int64_t rows) {
  if (end_ <= begin_) {
    if (!options_.loop) return 0;
    return absl::InvalidArgumentError("the dataset has no token for this rank");
  }
  if (!options_.loop) rows = std::min(rows, (end_ - head_) / options_.row_tokens);
  advance(rows * options_.row_tokens);
  return rows;
}

// At the end of a pass, stays in that pass, as a reader of text does: the next pass begins with its first token.
void TokenRows::advance(int64_t tokens) {
  head_ += tokens;
  if (head_ <= end_) return;
  const int64_t passes = (head_ - begin_ - 1) / (end_ - begin_);
  head_ -= passes * (end_ - begin_);
  pass_ += passes;
  if (std::exchange(warned_, true)) return;
  std::string warning = few_rows_warning(end_ - begin_, options_.row_tokens);
  if (!warning.empty()) warnings_.push_back(std::move(warning));
}

absl::Status TokenRows::check_ids() {
  const auto wrong =
      std::find_if(row_.begin(), row_.end(), [&](int32_t id) { return id < 0 || id > options_.max_token_id; });
  if (wrong == row_.end()) return absl::OkStatus();
  const TokenSet::Place place = set_.find(std::min(head_, set_.tokens() - 1)).value_or(TokenSet::Place{});
  return absl::InvalidArgumentError(absl::StrCat(
      set_.paths()[place.shard], ": a row that starts in document ", place.document, " holds token ", *wrong,
      ", and the tokenizer's last is ", options_.max_token_id, ": the data was made with another tokenizer"));
}

absl::StatusOr<StreamPosition> TokenRows::position() {
  StreamPosition position{.pass = pass_};
  position.document = {.file = set_.shards(), .document = set_.documents()};
  if (head_ >= set_.tokens()) return position;
  TITAN_ASSIGN_OR_RETURN(const TokenSet::Place place, set_.find(head_));
  position.document = {.file = place.shard,
                       .offset = place.begin,
                       .line = place.document,
                       .document = set_.documents_before(place.shard) + place.document};
  position.token = head_ - set_.tokens_before(place.shard) - place.begin;
  return position;
}

absl::Status TokenRows::seek(const StreamPosition& position) {
  const DocumentPosition& document = position.document;
  if (document.file > set_.shards()) {
    return absl::InvalidArgumentError(absl::StrCat("the saved position is in file ", document.file,
                                                   " of the dataset, which has ", counted(set_.shards(), "file")));
  }
  const int64_t head = set_.tokens_before(document.file) + document.offset + position.token;
  if (document.file < set_.shards()) {
    TITAN_ASSIGN_OR_RETURN(TokenShard * shard, set_.shard(document.file));
    const bool there = document.line < shard->documents();
    TITAN_ASSIGN_OR_RETURN(const int64_t begin, shard->document_begin(there ? document.line : 0));
    TITAN_ASSIGN_OR_RETURN(const int64_t end, shard->document_begin(there ? document.line + 1 : 0));
    if (!there || begin != document.offset || position.token > end - begin) {
      return absl::InvalidArgumentError(absl::StrCat(set_.paths()[document.file], ": token ", position.token,
                                                     " of document ", document.line,
                                                     " is not where it was at the checkpoint's data position: the "
                                                     "dataset has changed"));
    }
  }
  if (head < begin_ || head > end_) {
    return absl::InvalidArgumentError("the checkpoint's data position is outside of this rank's documents");
  }
  head_ = head;
  pass_ = position.pass;
  warnings_.clear();
  return absl::OkStatus();
}

std::vector<std::string> TokenRows::take_warnings() { return std::exchange(warnings_, {}); }

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

// Returns whether there is a next row. Begins the next pass only when its first row is requested.
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
        set_.paths()[place.shard], ": a row that starts in document ", place.document, " holds token ", *wrong,
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
