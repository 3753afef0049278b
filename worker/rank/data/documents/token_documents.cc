#include "worker/rank/data/documents/token_documents.h"

#include "absl/strings/str_cat.h"
#include "worker/rank/data/chat/label_tokens.h"
#include "worker/rank/data/documents/permutation.h"

namespace titan::data {

absl::Status encode_document_text(Tokenizer& tokenizer, DocumentText& document, std::vector<int32_t>& tokens) {
  if (!document.problem.empty()) return absl::OkStatus();
  if (document.tokens) {
    tokens.insert(tokens.end(), document.tokens->begin(), document.tokens->end());
    return absl::OkStatus();
  }
  if (!document.labels) return tokenizer.encode_document(document.text, tokens);
  const size_t before = tokens.size();
  const absl::Status encoded = encode_labels(tokenizer, document.text, *document.labels, tokens);
  if (encoded.ok()) return encoded;
  document.problem = std::string(encoded.message());
  tokens.resize(before);
  return absl::OkStatus();
}

namespace {

// Text in the order of its files.
class OrderedDocuments final : public TokenizedDocuments {
 public:
  OrderedDocuments(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer, const TokenDocumentsOptions& options)
      : TokenizedDocuments(std::move(tokenizer), options), reader_(std::move(reader)) {}

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

// Text in a different order each pass.
class ShuffledDocuments final : public TokenizedDocuments {
 public:
  ShuffledDocuments(std::unique_ptr<DocumentFinder> finder, const FileKind& kind, int64_t max_bad_lines,
                    std::shared_ptr<Tokenizer> tokenizer, const TokenDocumentsOptions& options)
      : TokenizedDocuments(std::move(tokenizer), options),
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
  int64_t number_ = 0;  // Number of the next document in the pass.
  int64_t bad_lines_ = 0;
  bool read_before_ = false;  // False in the first pass.
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

namespace {

// Documents that are already tokens, in their order or shuffled.
class SetDocuments final : public TokenDocuments {
 public:
  SetDocuments(TokenSet set, int32_t max_token_id, const TokenDocumentsOptions& options)
      : set_(std::move(set)), max_token_id_(max_token_id), options_(options) {
    const int64_t available = set_.documents() - options.first;
    documents_ = options.documents < 0 ? available : std::min(available, options.documents);
    if (shuffled()) options_.arrangement.of = documents_;
  }

  absl::StatusOr<std::optional<TokenDocument>> next() override {
    while (true) {
      if (number_ == documents_) {
        if (!options_.loop) return std::nullopt;
        TITAN_RETURN_IF_ERROR(next_pass());
        continue;
      }
      TITAN_ASSIGN_OR_RETURN(const TokenSet::Extent extent, next_extent());
      TokenDocument document{.start = position()};
      next_.reset();
      ++number_;
      pass_tokens_ += extent.tokens;
      document.first = extent.begin;
      document.tokens = extent.tokens;
      if (document.tokens > 0) return document;
    }
  }

  absl::Status read(const TokenDocument& document, int64_t begin, int64_t count, int32_t* out) override {
    TITAN_RETURN_IF_ERROR(set_.read(document.first + begin, count, out));
    const auto wrong = std::find_if(
        out, out + count, [&](int32_t id) { return (id < 0 && !set_.marked()) || token_of(id) > max_token_id_; });
    if (wrong == out + count) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const TokenSet::Place place, set_.find(document.first));
    return absl::InvalidArgumentError(absl::StrCat(set_.paths()[place.shard], ": document ", place.document,
                                                   " holds token ", *wrong, ", and the tokenizer's last is ",
                                                   max_token_id_, ": the data was made with another tokenizer"));
  }

  // `offset` is the next document's first token, or 0 if it cannot be read: next() then returns the error.
  StreamPosition position() const override {
    StreamPosition position{.document = {.document = number_}, .pass = pass_, .arrangement = options_.arrangement};
    if (number_ == documents_) return position;
    const absl::StatusOr<TokenSet::Extent> extent = next_extent();
    if (extent.ok()) position.document.offset = extent->begin;
    return position;
  }

  absl::Status seek(const StreamPosition& position) override {
    number_ = position.document.document;
    pass_ = position.pass;
    next_.reset();
    pass_tokens_ = 0;
    warned_ = number_ > 0;  // The totals of a pass that began before the seek are unknown.
    warnings_.clear();
    if (number_ < documents_) return check_begin(position.document.offset);
    if (number_ == documents_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is document ", number_, " of ",
                                                   documents_, ": the dataset has changed"));
  }

  std::vector<std::string> take_warnings() override { return std::exchange(warnings_, {}); }

 private:
  bool shuffled() const { return options_.arrangement.shuffle == Shuffle::kDocuments; }
  int64_t place(int64_t number) const {
    return shuffled() ? Permutation(documents_, options_.arrangement.seed, pass_)(number) : number;
  }

  absl::StatusOr<TokenSet::Extent> next_extent() const {
    if (next_.has_value()) return *next_;
    TITAN_ASSIGN_OR_RETURN(next_, set_.extent(options_.first + place(number_)));
    return *next_;
  }

  // Older checkpoints have no offset.
  absl::Status check_begin(int64_t saved) const {
    if (saved == 0) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const TokenSet::Extent extent, next_extent());
    if (extent.begin == saved) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is document ", number_,
                                                   ", which began at token ", saved, " and begins at token ",
                                                   extent.begin, " now: the dataset has changed"));
  }

  absl::Status next_pass() {
    if (pass_tokens_ == 0 && !warned_) {
      return absl::InvalidArgumentError("the dataset has no token for this rank");
    }
    std::string warning = warned_ ? "" : few_rows_warning(pass_tokens_, options_.row_tokens);
    warned_ = true;
    if (!warning.empty()) warnings_.push_back(std::move(warning));
    ++pass_;
    number_ = 0;
    next_.reset();
    return absl::OkStatus();
  }

  mutable TokenSet set_;  // Opens shards on demand.
  mutable std::optional<TokenSet::Extent> next_;
  const int32_t max_token_id_;
  TokenDocumentsOptions options_;
  int64_t documents_ = 0;
  int64_t number_ = 0;  // Number of the next document in the pass.
  int64_t pass_ = 0, pass_tokens_ = 0;
  bool warned_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace

std::unique_ptr<TokenDocuments> documents_of_set(TokenSet set, int32_t max_token_id,
                                                 const TokenDocumentsOptions& options) {
  return std::make_unique<SetDocuments>(std::move(set), max_token_id, options);
}

}  // namespace titan::data
