#include "worker/rank/data/chat/label_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

std::string spelled(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::string bytes;
  for (const int32_t token : tokens) bytes += tokenizer.bytes(token);
  return bytes;
}

// Returns the byte of `whole`, the text that all tokens spell, at which the first `bytes` bytes of `text` end.
// InvalidArgument if the tokenizer normalizes that prefix differently when more text follows.
absl::StatusOr<size_t> end_of(Tokenizer& tokenizer, const std::string& text, size_t bytes, const std::string& whole) {
  if (bytes == text.size()) return whole.size();
  std::vector<int32_t> tokens;
  TITAN_RETURN_IF_ERROR(tokenizer.encode(std::string_view(text).substr(0, bytes), tokens));
  const std::string part = spelled(tokenizer, tokens);
  if (whole.starts_with(part)) return part.size();
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer changes the text across byte ", bytes,
                   ", where a label begins or ends, so it is not known which tokens are labels"));
}

// Converts the spans to byte ranges of `whole`, the text that the tokens spell.
absl::StatusOr<std::vector<TextSpan>> spelled_spans(Tokenizer& tokenizer, const std::string& text,
                                                    const std::vector<TextSpan>& spans, const std::string& whole) {
  if (whole == text) return spans;
  std::vector<TextSpan> moved;
  for (const auto& [begin, end] : spans) {
    TITAN_ASSIGN_OR_RETURN(const size_t from, end_of(tokenizer, text, begin, whole));
    TITAN_ASSIGN_OR_RETURN(const size_t to, end_of(tokenizer, text, end, whole));
    moved.emplace_back(from, to);
  }
  return moved;
}

}  // namespace

absl::Status encode_labels(Tokenizer& tokenizer, const std::string& text, const std::vector<TextSpan>& labels,
                           std::vector<int32_t>& tokens) {
  std::vector<int32_t> ids;
  TITAN_RETURN_IF_ERROR(tokenizer.encode(text, ids));
  const std::string whole = spelled(tokenizer, ids);
  TITAN_ASSIGN_OR_RETURN(const std::vector<TextSpan> spans, spelled_spans(tokenizer, text, labels, whole));
  auto span = spans.begin();
  size_t at = 0;
  for (const int32_t id : ids) {
    const size_t end = at + tokenizer.bytes(id).size();
    while (span != spans.end() && (span->second <= at || span->first == span->second)) ++span;
    const bool label = span != spans.end() && span->first < end;
    tokens.push_back(label ? id : without_label(id));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace titan::data
