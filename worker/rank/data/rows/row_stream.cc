#include "worker/rank/data/rows/row_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {
RowStream::RowStream(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer, int64_t row_tokens, bool loop)
    : reader_(std::move(reader)), tokenizer_(std::move(tokenizer)), row_tokens_(row_tokens), loop_(loop) {}

absl::StatusOr<const int32_t*> RowStream::next() {
  // Drops many rows from the front at once, so that copying stays cheap compared with tokenizing.
  if (head_ - first_ > 64 * row_tokens_ || head_ - first_ == static_cast<int64_t>(tokens_.size())) {
    tokens_.erase(tokens_.begin(), tokens_.begin() + (head_ - first_));
    first_ = head_;
  }
  while (first_ + static_cast<int64_t>(tokens_.size()) < head_ + row_tokens_) {
    TITAN_ASSIGN_OR_RETURN(const bool more, append_document());
    if (!more) return nullptr;
  }
  const int32_t* row = tokens_.data() + (head_ - first_);
  head_ += row_tokens_;
  while (segments_.size() > 1 && segments_[1].begin <= head_) segments_.pop_front();
  return row;
}

absl::StatusOr<int64_t> RowStream::skip(int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    TITAN_ASSIGN_OR_RETURN(const int32_t* tokens, next());
    if (tokens == nullptr) return row;
  }
  return rows;
}

absl::StatusOr<bool> RowStream::append_document() {
  TITAN_ASSIGN_OR_RETURN(std::optional<Document> document, reader_.next());
  if (!document.has_value()) {
    if (!loop_) return false;
    if (!pass_had_tokens_) return no_documents(take_warnings());
    warn_of_repeats();
    pass_had_tokens_ = false;
    ++pass_;
    pass_begin_ = first_ + static_cast<int64_t>(tokens_.size());
    reader_.rewind();
    return true;
  }
  const size_t before = tokens_.size();
  TITAN_RETURN_IF_ERROR(tokenizer_->encode_document(document->text, tokens_));
  if (tokens_.size() == before) return true;
  pass_had_tokens_ = true;
  segments_.push_back({first_ + static_cast<int64_t>(before),
                       {.document = document->position, .pass = pass_, .bad_lines = reader_.bad_lines()}});
  return true;
}

void RowStream::warn_of_repeats() {
  const int64_t tokens = first_ + static_cast<int64_t>(tokens_.size()) - pass_begin_;
  if (pass_begin_ < 0 || warned_of_repeats_) return;
  std::string warning = few_rows_warning(tokens, row_tokens_);
  if (warning.empty()) return;
  warned_of_repeats_ = true;
  warnings_.push_back(std::move(warning));
}

std::vector<std::string> RowStream::take_warnings() {
  std::vector<std::string> warnings = reader_.take_warnings();
  warnings.insert(warnings.end(), warnings_.begin(), warnings_.end());
  warnings_.clear();
  return warnings;
}

StreamPosition RowStream::reader_position() const {
  return {.document = reader_.position(), .pass = pass_, .bad_lines = reader_.bad_lines()};
}

absl::StatusOr<StreamPosition> RowStream::position() {
  const int64_t end = first_ + static_cast<int64_t>(tokens_.size());
  if (segments_.empty() || head_ == end) return reader_position();
  StreamPosition position = segments_.front().start;
  position.token = head_ - segments_.front().begin;
  return position;
}

absl::Status RowStream::seek(const StreamPosition& position) {
  TITAN_RETURN_IF_ERROR(reader_.seek(position.document, position.bad_lines));
  take_warnings();
  tokens_.clear();
  segments_.clear();
  first_ = head_ = 0;
  pass_ = position.pass;
  pass_begin_ = position == StreamPosition{} ? 0 : -1;
  pass_had_tokens_ = position.document.document > 0;
  if (position.token == 0) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const bool more, append_document());
  if (!more || static_cast<int64_t>(tokens_.size()) < position.token) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is token ", position.token,
                                                   " of a document that now has ", tokens_.size(),
                                                   ": the dataset or the tokenizer has changed"));
  }
  head_ = position.token;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RowStream::count_tokens(const StreamPosition& position) {
  TITAN_RETURN_IF_ERROR(reader_.seek(position.document, position.bad_lines));
  TITAN_ASSIGN_OR_RETURN(const std::optional<Document> document, reader_.next());
  if (!document.has_value()) return int64_t{0};
  std::vector<int32_t> tokens;
  TITAN_RETURN_IF_ERROR(tokenizer_->encode_document(document->text, tokens));
  return static_cast<int64_t>(tokens.size());
}

absl::Status RowStream::seek_torchtitan_position(int64_t documents, int64_t tokens_left) {
  TITAN_RETURN_IF_ERROR(seek({}));
  // Starts of the newest documents. Each has at least one token, so tokens_left + 1 starts suffice.
  std::deque<StreamPosition> starts;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t bad_lines = reader_.bad_lines();
    TITAN_ASSIGN_OR_RETURN(const std::optional<Document> document, reader_.next());
    if (!document.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the checkpoint's data position is after ", counted(documents, "document"),
          ", but this rank's share of the dataset has ", i, ": continue with the dataset that it was saved with"));
    }
    starts.push_back({.document = document->position, .bad_lines = bad_lines});
    if (static_cast<int64_t>(starts.size()) > tokens_left + 1) starts.pop_front();
  }
  StreamPosition position = reader_position();
  for (int64_t left = tokens_left; left > 0;) {
    if (starts.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the checkpoint's data position leaves ", tokens_left,
                       " tokens of the documents before it, which have fewer"
                       ": the dataset or the tokenizer has changed, or a new pass had just begun"));
    }
    position = starts.back();
    starts.pop_back();
    TITAN_ASSIGN_OR_RETURN(const int64_t tokens, count_tokens(position));
    position.token = std::max<int64_t>(0, tokens - left);
    left -= tokens;
  }
  return seek(position);
}

}  // namespace titan::data
