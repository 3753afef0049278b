#pragma once

// Packs whole documents of a window into rows by best fit.

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {

// Some tokens of a document in a window.
struct DocumentPiece {
  int64_t document = 0;  // Index in the window.
  int64_t begin = 0, tokens = 0;

  bool operator==(const DocumentPiece&) const = default;
};

// Packs documents of these lengths into rows of `row_tokens`, and cuts none that fits a row. A longer one becomes whole
// rows and a rest; each piece begins with the last token of the previous one, so that every token but a document's
// first is a label exactly once. A document of one token has no label and is left out. Pieces are placed longest first,
// each in the row that it fills best (best fit decreasing). The result is in the order of the documents, within rows
// and across rows.
std::vector<std::vector<DocumentPiece>> best_fit(const std::vector<int64_t>& lengths, int64_t row_tokens);

// Rows of whole documents, by best fit among those of a window; the rest of a row is padding. A position is the start
// of the window and the number of its rows that were already returned: resuming packs the window again.
class PackedRows final : public RowSource {
 public:
  struct Options {
    int64_t row_tokens = 0;
    int64_t window = 1024;  // Documents per window.
    int32_t padding = 0;    // The padding token.
  };
  PackedRows(std::unique_ptr<TokenDocuments> documents, const Options& options)
      : documents_(std::move(documents)), options_(options), row_(static_cast<size_t>(options.row_tokens)) {}

  absl::StatusOr<const int32_t*> next() override;
  absl::Span<const int64_t> piece_ends() const override { return ends_; }
  bool has_pieces() const override { return true; }
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  int64_t padding() const override { return padded_; }
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override { return documents_->take_warnings(); }

 private:
  absl::StatusOr<bool> settle_window();
  absl::Status fill_window();
  void pass_row();
  StreamPosition arranged(StreamPosition position) const;

  std::unique_ptr<TokenDocuments> documents_;
  const Options options_;
  StreamPosition start_;  // Start of the window.
  std::vector<TokenDocument> window_;
  std::vector<std::vector<DocumentPiece>> rows_;  // Rows of the window.
  size_t given_ = 0;                              // Number of them already returned or skipped.
  std::vector<int32_t> row_;
  std::vector<int64_t> ends_;
  int64_t padded_ = 0;
};

}  // namespace titan::data
