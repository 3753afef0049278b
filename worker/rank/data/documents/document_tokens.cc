#include "worker/rank/data/documents/document_tokens.h"

#include "worker/rank/data/chat/label_tokens.h"

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

}  // namespace titan::data
