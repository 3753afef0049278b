#include "worker/rank/data/documents/counted_documents.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/block_counts.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {
namespace {

constexpr int64_t kChunk = DocumentLengths::kDocuments;
constexpr size_t kKeptDocuments = 8;  // Rows may begin and end inside a document.

class CountedDocuments final : public TokenizedDocuments {
 public:
  CountedDocuments(std::unique_ptr<DocumentFinder> counted, std::unique_ptr<DocumentFinder> read,
                   std::shared_ptr<Tokenizer> tokenizer, const CountedDocumentsOptions& sharing,
                   const TokenDocumentsOptions& options)
      : TokenizedDocuments(std::move(tokenizer), options),
        counted_(std::move(counted)),
        read_(std::move(read)),
        sharing_(sharing),
        documents_(read_->documents()),
        chunks_((documents_ + kChunk - 1) / kChunk),
        lengths_(
            CountsFile<DocumentLengths>(sharing.counts_file),
            options.loop ? std::numeric_limits<int64_t>::max() / 2 : chunks_, sharing.rank, sharing.ranks,
            [this](int64_t chunk) { return count(chunk); }, sharing.timeout) {
    if (options_.arrangement.shuffle != Shuffle::kNone) options_.arrangement.of = documents_;
    here_ = {.arrangement = options_.arrangement};
  }

  absl::StatusOr<std::optional<TokenDocument>> next() override {
    while (true) {
      if (number_ == documents_) {
        if (!options_.loop) return std::nullopt;
        TITAN_RETURN_IF_ERROR(next_pass());
        read_before_ = true;
        TITAN_RETURN_IF_ERROR(go_to(0, 0));
        continue;
      }
      TITAN_ASSIGN_OR_RETURN(const DocumentLengths lengths, lengths_.get(pass_ * chunks_ + number_ / kChunk));
      const int32_t tokens = lengths.tokens[static_cast<size_t>(number_ % kChunk)];
      TITAN_ASSIGN_OR_RETURN(here_.document, read_->position(number_));
      const TokenDocument document{.start = here_, .tokens = tokens, .first = number_};
      if (tokens == DocumentLengths::kMalformed) TITAN_RETURN_IF_ERROR(note_malformed());
      TITAN_RETURN_IF_ERROR(go_to(number_ + 1, here_.bad_lines + (tokens == DocumentLengths::kMalformed ? 1 : 0)));
      if (tokens <= 0) continue;
      add(tokens);
      return document;
    }
  }

  // Skips whole records of the counts, except those with malformed documents, which next() reports one by one.
  absl::StatusOr<int64_t> skip_up_to(int64_t max_tokens) override {
    int64_t passed = 0;
    while (number_ % kChunk == 0 && number_ + kChunk <= documents_) {
      TITAN_ASSIGN_OR_RETURN(const DocumentLengths lengths, lengths_.get(pass_ * chunks_ + number_ / kChunk));
      int64_t tokens = 0;
      for (const int32_t one : lengths.tokens) tokens += one;
      const bool malformed =
          std::find(lengths.tokens.begin(), lengths.tokens.end(), DocumentLengths::kMalformed) != lengths.tokens.end();
      if (malformed || passed + tokens > max_tokens) break;
      if (tokens > 0) add(tokens);
      passed += tokens;
      TITAN_RETURN_IF_ERROR(go_to(number_ + kChunk, here_.bad_lines));
    }
    return passed;
  }
  bool can_skip() const override { return options_.loop; }

  absl::Status read(const TokenDocument& document, int64_t begin, int64_t count, int32_t* out) override {
    TITAN_ASSIGN_OR_RETURN(const std::vector<int32_t>* tokens, tokens_of(document));
    std::copy_n(tokens->begin() + begin, count, out);
    return absl::OkStatus();
  }

  StreamPosition position() const override { return here_; }

  absl::Status seek(const StreamPosition& position) override {
    begin_at(position);
    TITAN_RETURN_IF_ERROR(read_->check(position.document));
    return go_to(position.document.document, position.bad_lines);
  }

 private:
  struct Kept {
    int64_t pass = 0, number = 0;
    std::vector<int32_t> tokens;
  };

  absl::Status go_to(int64_t number, int64_t bad_lines) {
    number_ = number;
    here_.pass = pass_;
    here_.bad_lines = bad_lines;
    TITAN_ASSIGN_OR_RETURN(here_.document, read_->position(number));
    return absl::OkStatus();
  }

  absl::Status note_malformed() {
    const int64_t bad = here_.bad_lines + 1;
    if (read_before_ && bad <= sharing_.max_bad_lines) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const DocumentFinder::Found found, read_->read(pass_, number_));
    const std::string problem = absl::StrCat(found.name, ": ", found.text.problem);
    if (bad > sharing_.max_bad_lines) return too_many_bad_lines(problem, bad, sharing_.max_bad_lines, sharing_.kind);
    warnings_.push_back(absl::StrCat(problem, ", skipped"));
    return absl::OkStatus();
  }

  absl::StatusOr<DocumentLengths> count(int64_t chunk) {
    DocumentLengths lengths;
    const int64_t pass = chunk / chunks_, first = chunk % chunks_ * kChunk;
    for (int64_t i = 0; i < kChunk && first + i < documents_; ++i) {
      TITAN_ASSIGN_OR_RETURN(DocumentFinder::Found found, counted_->read(pass, first + i));
      std::vector<int32_t> tokens;
      TITAN_RETURN_IF_ERROR(encode_document_text(*tokenizer_, found.text, tokens));
      if (tokens.size() > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(absl::StrCat(found.name, ": more than 2^31 tokens; cut the document"));
      }
      const bool malformed = !found.text.problem.empty();
      lengths.tokens[static_cast<size_t>(i)] =
          malformed ? DocumentLengths::kMalformed : static_cast<int32_t>(tokens.size());
    }
    return lengths;
  }

  // Returns the document's tokens. InvalidArgument if their number differs from the count.
  absl::StatusOr<const std::vector<int32_t>*> tokens_of(const TokenDocument& document) {
    const int64_t pass = document.start.pass, number = document.first;
    const auto there = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& kept) { return kept.number == number && kept.pass == pass; });
    if (there != kept_.end()) return &there->tokens;
    TITAN_ASSIGN_OR_RETURN(DocumentFinder::Found found, read_->read(pass, number));
    Kept kept{pass, number, {}};
    TITAN_RETURN_IF_ERROR(encode_document_text(*tokenizer_, found.text, kept.tokens));
    if (static_cast<int64_t>(kept.tokens.size()) != document.tokens) {
      return absl::InvalidArgumentError(absl::StrCat(found.name, ": has ", kept.tokens.size(),
                                                     " tokens and was counted with ", document.tokens,
                                                     ": the dataset has changed since; remove ", sharing_.counts_file));
    }
    if (kept_.size() == kKeptDocuments) kept_.pop_front();
    kept_.push_back(std::move(kept));
    return &kept_.back().tokens;
  }

  const std::unique_ptr<DocumentFinder> counted_, read_;
  const CountedDocumentsOptions sharing_;
  const int64_t documents_, chunks_;  // In a pass.
  SharedCounts<DocumentLengths> lengths_;
  int64_t number_ = 0;  // Number of the next document in the pass, which is at here_.
  StreamPosition here_;
  bool read_before_ = false;  // False in the first pass.
  std::deque<Kept> kept_;     // The documents read last.
};

}  // namespace

std::unique_ptr<TokenDocuments> counted_documents(std::unique_ptr<DocumentFinder> counted,
                                                  std::unique_ptr<DocumentFinder> read,
                                                  std::shared_ptr<Tokenizer> tokenizer,
                                                  const CountedDocumentsOptions& sharing,
                                                  const TokenDocumentsOptions& options) {
  return std::make_unique<CountedDocuments>(std::move(counted), std::move(read), std::move(tokenizer), sharing,
                                            options);
}

}  // namespace titan::data
