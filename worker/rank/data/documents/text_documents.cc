// Text as token documents: as it comes, and shuffled.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/bad_lines.h"
#include "worker/rank/data/documents/token_documents.h"
#include "worker/rank/data/documents/tokenised_documents.h"

namespace titan::data {
namespace {

class OrderedDocuments final : public TokenisedDocuments {
 public:
  OrderedDocuments(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer, const TokenDocumentsOptions& options)
      : TokenisedDocuments(std::move(tokenizer), options), reader_(std::move(reader)) {}

  absl::StatusOr<std::optional<TokenDocument>> next() override {
    while (true) {
      TITAN_ASSIGN_OR_RETURN(std::optional<Document> read, reader_.next());
      for (std::string& warning : reader_.take_warnings()) warnings_.push_back(std::move(warning));
      if (read.has_value()) {
        StreamPosition start = position();
        start.document = read->position;
        DocumentText text{std::move(read->text), "", std::move(read->labels), std::move(read->tokens)};
        TITAN_ASSIGN_OR_RETURN(std::optional<TokenDocument> document, tokenised(text, start));
        if (document.has_value()) return document;
        if (!text.problem.empty()) TITAN_RETURN_IF_ERROR(reader_.refuse(text.problem));
        continue;
      }
      if (!options_.loop) return std::nullopt;
      TITAN_RETURN_IF_ERROR(next_pass());
      reader_.rewind();
    }
  }

  StreamPosition position() const override {
    return {.document = reader_.position(),
            .pass = pass_,
            .bad_lines = reader_.bad_lines(),
            .arrangement = options_.arrangement};
  }

  absl::Status seek(const StreamPosition& position) override {
    TITAN_RETURN_IF_ERROR(reader_.seek(position.document, position.bad_lines));
    reader_.take_warnings();
    begin_at(position);
    return absl::OkStatus();
  }

 private:
  DocumentReader reader_;
};

class ShuffledDocuments final : public TokenisedDocuments {
 public:
  ShuffledDocuments(std::unique_ptr<DocumentFinder> finder, const FileKind& kind, int64_t max_bad_lines,
                    std::shared_ptr<Tokenizer> tokenizer, const TokenDocumentsOptions& options)
      : TokenisedDocuments(std::move(tokenizer), options),
        finder_(std::move(finder)),
        kind_(kind),
        max_bad_lines_(max_bad_lines) {
    options_.arrangement.of = finder_->documents();
  }

  absl::StatusOr<std::optional<TokenDocument>> next() override {
    while (true) {
      if (number_ == options_.arrangement.of) {
        if (!options_.loop) return std::nullopt;
        TITAN_RETURN_IF_ERROR(next_pass());
        number_ = bad_lines_ = 0;
        read_before_ = true;
        continue;
      }
      const StreamPosition start = position();
      TITAN_ASSIGN_OR_RETURN(DocumentFinder::Found found, finder_->read(pass_, number_));
      ++number_;
      std::optional<TokenDocument> document;
      if (found.text.problem.empty()) {
        TITAN_ASSIGN_OR_RETURN(document, tokenised(found.text, start));
      }
      if (document.has_value()) return document;
      if (!found.text.problem.empty()) TITAN_RETURN_IF_ERROR(note(absl::StrCat(found.name, ": ", found.text.problem)));
    }
  }

  StreamPosition position() const override {
    return {
        .document = {.document = number_}, .pass = pass_, .bad_lines = bad_lines_, .arrangement = options_.arrangement};
  }

  absl::Status seek(const StreamPosition& position) override {
    number_ = position.document.document;
    bad_lines_ = position.bad_lines;
    begin_at(position);
    if (number_ <= options_.arrangement.of) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is document ", number_, " of ",
                                                   options_.arrangement.of, ": the dataset has changed"));
  }

 private:
  absl::Status note(const std::string& problem) {
    if (++bad_lines_ > max_bad_lines_) {
      return too_many_bad_lines(problem, bad_lines_, max_bad_lines_, kind_);
    }
    if (!read_before_) warnings_.push_back(absl::StrCat(problem, ", skipped"));
    return absl::OkStatus();
  }

  const std::unique_ptr<DocumentFinder> finder_;
  const FileKind kind_;
  const int64_t max_bad_lines_;
  int64_t number_ = 0;  // Of the next document in the pass.
  int64_t bad_lines_ = 0;
  bool read_before_ = false;  // Not the first pass.
};

}  // namespace

std::unique_ptr<TokenDocuments> documents_in_order(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer,
                                                   const TokenDocumentsOptions& options) {
  return std::make_unique<OrderedDocuments>(std::move(reader), std::move(tokenizer), options);
}

std::unique_ptr<TokenDocuments> shuffled_documents(std::unique_ptr<DocumentFinder> finder, const FileKind& kind,
                                                   int64_t max_bad_lines, std::shared_ptr<Tokenizer> tokenizer,
                                                   const TokenDocumentsOptions& options) {
  return std::make_unique<ShuffledDocuments>(std::move(finder), kind, max_bad_lines, std::move(tokenizer), options);
}

}  // namespace titan::data
