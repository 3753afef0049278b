#include "worker/rank/data/rows/packed_rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

std::vector<DocumentPiece> cut(const std::vector<int64_t>& lengths, int64_t row_tokens) {
  std::vector<DocumentPiece> pieces;
  for (size_t document = 0; document < lengths.size(); ++document) {
    for (int64_t begin = 0; begin + 1 < lengths[document]; begin += row_tokens - 1) {
      pieces.push_back({static_cast<int64_t>(document), begin, std::min(row_tokens, lengths[document] - begin)});
    }
  }
  return pieces;
}

bool comes_before(const DocumentPiece& one, const DocumentPiece& other) {
  return std::pair(one.document, one.begin) < std::pair(other.document, other.begin);
}

}  // namespace

std::vector<std::vector<DocumentPiece>> best_fit(const std::vector<int64_t>& lengths, int64_t row_tokens) {
  std::vector<DocumentPiece> pieces = cut(lengths, row_tokens);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const DocumentPiece& one, const DocumentPiece& other) { return one.tokens > other.tokens; });
  std::vector<std::vector<DocumentPiece>> rows;
  std::set<std::pair<int64_t, size_t>> space;  // Free tokens of a row, and the row.
  for (const DocumentPiece& piece : pieces) {
    const auto found = space.lower_bound({piece.tokens, 0});
    int64_t left = row_tokens;
    size_t row = rows.size();
    if (found == space.end()) {
      rows.emplace_back();
    } else {
      std::tie(left, row) = *found;
      space.erase(found);
    }
    rows[row].push_back(piece);
    if (left - piece.tokens > 1) space.emplace(left - piece.tokens, row);
  }
  for (std::vector<DocumentPiece>& row : rows) std::sort(row.begin(), row.end(), comes_before);
  std::sort(rows.begin(), rows.end(),
            [](const auto& one, const auto& other) { return comes_before(one.front(), other.front()); });
  return rows;
}

absl::Status PackedRows::fill_window() {
  start_ = documents_->position();
  window_.clear();
  given_ = 0;
  std::vector<int64_t> lengths;
  while (static_cast<int64_t>(window_.size()) < options_.window) {
    TITAN_ASSIGN_OR_RETURN(std::optional<TokenDocument> document, documents_->next());
    if (!document.has_value()) break;
    lengths.push_back(document->tokens);
    window_.push_back(*std::move(document));
  }
  rows_ = best_fit(lengths, options_.row_tokens);
  return absl::OkStatus();
}

// Returns whether there is a next row. Reads the next window only when its first row is requested.
absl::StatusOr<bool> PackedRows::settle_window() {
  const int64_t pass = documents_->position().pass;
  while (given_ == rows_.size()) {
    TITAN_RETURN_IF_ERROR(fill_window());
    if (window_.empty()) return false;
    if (rows_.empty() && documents_->position().pass >= pass + 2) {  // A whole pass was seen.
      return absl::InvalidArgumentError(
          "every document of the dataset has a single token: nothing can be predicted from it");
    }
  }
  return true;
}

void PackedRows::pass_row() {
  padded_ += options_.row_tokens;
  for (const DocumentPiece& piece : rows_[given_]) padded_ -= piece.tokens;
  ++given_;
}

absl::StatusOr<const int32_t*> PackedRows::next() {
  TITAN_ASSIGN_OR_RETURN(const bool there, settle_window());
  if (!there) return nullptr;
  ends_.clear();
  int64_t filled = 0;
  for (const DocumentPiece& piece : rows_[given_]) {
    TITAN_RETURN_IF_ERROR(documents_->read(window_[piece.document], piece.begin, piece.tokens, row_.data() + filled));
    filled += piece.tokens;
    ends_.push_back(filled);
  }
  std::fill(row_.begin() + filled, row_.end(), options_.padding);
  pass_row();
  return row_.data();
}

absl::StatusOr<int64_t> PackedRows::skip(int64_t rows) {
  int64_t skipped = 0;
  while (skipped < rows) {
    TITAN_ASSIGN_OR_RETURN(const bool there, settle_window());
    if (!there) break;
    const int64_t part = std::min(rows - skipped, static_cast<int64_t>(rows_.size() - given_));
    for (int64_t row = 0; row < part; ++row) pass_row();
    skipped += part;
  }
  return skipped;
}

StreamPosition PackedRows::arranged(StreamPosition position) const {
  position.arrangement.window = options_.window;
  position.arrangement.row_tokens = options_.row_tokens;
  return position;
}

absl::StatusOr<StreamPosition> PackedRows::position() {
  if (given_ == rows_.size()) return arranged(documents_->position());
  StreamPosition position = arranged(start_);
  position.row = static_cast<int64_t>(given_);
  return position;
}

absl::Status PackedRows::seek(const StreamPosition& position) {
  window_.clear();
  rows_.clear();
  given_ = 0;
  StreamPosition start = position;
  start.row = 0;
  TITAN_RETURN_IF_ERROR(documents_->seek(start));
  if (position.row == 0) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(fill_window());
  if (position.row >= static_cast<int64_t>(rows_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is after row ", position.row,
                                                   " of a window that has ", rows_.size(),
                                                   " now: the dataset or the tokenizer has changed"));
  }
  given_ = static_cast<size_t>(position.row);
  return absl::OkStatus();
}

}  // namespace titan::data
