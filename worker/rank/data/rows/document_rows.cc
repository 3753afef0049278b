#include "worker/rank/data/rows/document_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {

// Gets the documents of one more row; false if too few are left.
absl::StatusOr<bool> DocumentRows::fetch() {
  while (tokens_ < static_cast<int64_t>(row_.size())) {
    TITAN_ASSIGN_OR_RETURN(std::optional<TokenDocument> document, documents_->next());
    if (!document.has_value()) return false;
    tokens_ += document->tokens;
    ahead_.push_back(*std::move(document));
  }
  return true;
}

// Moves past a row, and writes its tokens to `out` unless that is null. False if no whole row is left.
absl::StatusOr<bool> DocumentRows::advance(int32_t* out) {
  TITAN_ASSIGN_OR_RETURN(const bool there, fetch());
  if (!there) return false;
  ends_.clear();
  for (int64_t left = static_cast<int64_t>(row_.size()); left > 0;) {
    const TokenDocument& document = ahead_.front();
    const int64_t part = std::min(left, document.tokens - token_);
    if (out != nullptr) {
      TITAN_RETURN_IF_ERROR(documents_->read(document, token_, part, out));
      out += part;
    }
    left -= part;
    if (pieces_) ends_.push_back(static_cast<int64_t>(row_.size()) - left);
    token_ += part;
    tokens_ -= part;
    if (token_ < document.tokens) continue;
    ahead_.pop_front();
    token_ = 0;
  }
  return true;
}

absl::StatusOr<const int32_t*> DocumentRows::next() {
  TITAN_ASSIGN_OR_RETURN(const bool there, advance(row_.data()));
  return there ? row_.data() : nullptr;
}

// Skips tokens, many documents at once where possible.
absl::Status DocumentRows::skip_up_to(int64_t tokens) {
  while (tokens > 0) {
    if (ahead_.empty()) {
      TITAN_ASSIGN_OR_RETURN(const int64_t passed, documents_->skip_up_to(tokens));
      tokens -= passed;
      if (tokens == 0) break;
      TITAN_ASSIGN_OR_RETURN(std::optional<TokenDocument> document, documents_->next());
      if (!document.has_value()) break;  // Cannot happen if documents loop.
      tokens_ += document->tokens;
      ahead_.push_back(*std::move(document));
    }
    const int64_t part = std::min(tokens, ahead_.front().tokens - token_);
    tokens -= part;
    token_ += part;
    tokens_ -= part;
    if (token_ < ahead_.front().tokens) continue;
    ahead_.pop_front();
    token_ = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> DocumentRows::skip(int64_t rows) {
  if (documents_->can_skip()) {
    TITAN_RETURN_IF_ERROR(skip_up_to(rows * static_cast<int64_t>(row_.size())));
    return rows;
  }
  for (int64_t row = 0; row < rows; ++row) {
    TITAN_ASSIGN_OR_RETURN(const bool there, advance(nullptr));
    if (!there) return row;
  }
  return rows;
}

absl::StatusOr<StreamPosition> DocumentRows::position() {
  if (ahead_.empty()) return documents_->position();
  StreamPosition position = ahead_.front().start;
  position.token = token_;
  return position;
}

absl::Status DocumentRows::seek(const StreamPosition& position) {
  ahead_.clear();
  token_ = tokens_ = 0;
  StreamPosition start = position;
  start.token = 0;
  TITAN_RETURN_IF_ERROR(documents_->seek(start));
  if (position.token == 0) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(std::optional<TokenDocument> document, documents_->next());
  const int64_t tokens = document.has_value() ? document->tokens : 0;
  if (tokens <= position.token || document->start.document.document != position.document.document) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is token ", position.token,
                                                   " of a document that now has ", tokens,
                                                   ": the dataset or the tokenizer has changed"));
  }
  token_ = position.token;
  tokens_ = tokens - token_;
  ahead_.push_back(*std::move(document));
  return absl::OkStatus();
}

}  // namespace titan::data
