#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status/status.h"
#include "worker/rank/data/documents/bad_lines.h"
#include "worker/rank/data/documents/document_tokens.h"
#include "worker/rank/data/documents/token_documents.h"

namespace titan::data {

// What kinds of text have in common: the tokens of documents that were tokenised, and what a pass of them came to.
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
    TITAN_RETURN_IF_ERROR(encode_document_text(*tokenizer_, text, document.ids));
    if (!text.problem.empty()) return std::nullopt;
    document.tokens = static_cast<int64_t>(document.ids.size());
    if (document.tokens == 0) return std::nullopt;
    add(document.tokens);
    return document;
  }

  void add(int64_t tokens) {
    had_tokens_ = true;
    if (pass_tokens_ >= 0) pass_tokens_ += tokens;
  }

  absl::Status next_pass() {
    if (!had_tokens_) return no_documents(warnings_);
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

}  // namespace titan::data
