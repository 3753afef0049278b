#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {

// Rows cut from a sequence of documents. Of documents in other ranks' rows it uses only the lengths.
class DocumentRows final : public RowSource {
 public:
  // `pieces`: rows record where their documents end, because no token marks it (has_pieces). A document's last token
  // then does not predict the next document.
  DocumentRows(std::unique_ptr<TokenDocuments> documents, int64_t row_tokens, bool pieces)
      : documents_(std::move(documents)), row_(static_cast<size_t>(row_tokens)), pieces_(pieces) {}

  absl::StatusOr<const int32_t*> next() override;
  absl::Span<const int64_t> piece_ends() const override { return ends_; }
  bool has_pieces() const override { return pieces_; }
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override { return documents_->take_warnings(); }

 private:
  absl::StatusOr<bool> fetch();
  absl::StatusOr<bool> advance(int32_t* out);
  absl::Status skip_up_to(int64_t tokens);

  std::unique_ptr<TokenDocuments> documents_;
  std::vector<int32_t> row_;
  const bool pieces_;
  std::vector<int64_t> ends_;        // Ends of the documents in row_.
  std::deque<TokenDocument> ahead_;  // The documents of the next row, starting with the one in which it starts.
  int64_t token_ = 0;                // The next row's first token in ahead_.front().
  int64_t tokens_ = 0;               // Tokens in ahead_ from there.
};

}  // namespace titan::data
