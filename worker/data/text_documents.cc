// Text as token documents: as it comes, and shuffled.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/bad_lines.h"
#include "worker/data/chat/label_tokens.h"
#include "worker/data/token_documents.h"

namespace titan::data {
namespace {

// The tokens of documents that were tokenised, and what a pass of them came to.
class TokenisedDocuments : public TokenDocuments {
 public:
  TokenisedDocuments(std::shared_ptr<Tokenizer> tokenizer, const TokenDocumentsOptions& options)
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  absl::Status read(const TokenDocument& document, int64_t begin, int64_t count, int32_t* out) override {
    std::copy_n(document.ids.begin() + begin, count, out);
    return absl::OkStatus();
  }
  std::vector<std::string> take_warnings() override { return std::exchange(warnings_, {}); }

 protected:
  // Nothing for a text without tokens, or with a problem.
  absl::StatusOr<std::optional<TokenDocument>> tokenised(DocumentText& text, const StreamPosition& start) {
    TokenDocument document{.start = start};
    if (text.labels) {
      const absl::Status encoded = encode_labels(*tokenizer_, text.text, *text.labels, document.ids);
      if (!encoded.ok()) text.problem = std::string(encoded.message());
      if (!encoded.ok()) return std::nullopt;
    } else {
      TITAN_RETURN_IF_ERROR(tokenizer_->encode_document(text.text, document.ids));
    }
    document.tokens = static_cast<int64_t>(document.ids.size());
    if (document.tokens == 0) return std::nullopt;
    had_tokens_ = true;
    if (pass_tokens_ >= 0) pass_tokens_ += document.tokens;
    return document;
  }

  absl::Status next_pass() {
    if (!had_tokens_) return no_documents();
    const bool few = pass_tokens_ >= 0 && !warned_;
    std::string warning = few ? few_rows_warning(pass_tokens_, options_.row_tokens) : "";
    warned_ |= !warning.empty();
    if (!warning.empty()) warnings_.push_back(std::move(warning));
    ++pass_;
    pass_tokens_ = 0;
    had_tokens_ = false;
    return absl::OkStatus();
  }

  void begin_at(const StreamPosition& position) {
    pass_ = position.pass;
    had_tokens_ = position.document.document > 0;
    pass_tokens_ = had_tokens_ ? -1 : 0;
    warnings_.clear();
  }

  const std::shared_ptr<Tokenizer> tokenizer_;
  TokenDocumentsOptions options_;
  int64_t pass_ = 0;
  bool had_tokens_ = false, warned_ = false;
  int64_t pass_tokens_ = 0;  // -1: the pass began before a seek.
  std::vector<std::string> warnings_;
};

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
        DocumentText text{std::move(read->text), "", std::move(read->labels)};
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
