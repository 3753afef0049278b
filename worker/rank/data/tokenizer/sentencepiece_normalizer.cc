#include "worker/rank/data/tokenizer/sentencepiece_normalizer.h"

#include <utility>

#include "worker/rank/data/tokenizer/byte_tokens.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {

SentencePieceNormalizer::SentencePieceNormalizer(const tokenizer_files::SentencePieceModel& model, Charsmap rules,
                                                 const AddedTokenMatcher* fixed)
    : rules_(std::move(rules)),
      fixed_(fixed),
      space_(model.escape_whitespaces ? kSpaceMark : " "),
      add_dummy_prefix_(model.add_dummy_prefix),
      remove_extra_(model.remove_extra_whitespaces) {}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::prefix(std::string_view text) const {
  if (const size_t length = fixed_->length_at(text, 0); length > 0) return {text.substr(0, length), length};
  if (const Charsmap::Match rule = rules_.longest(text); rule.length > 0) return {rule.replacement, rule.length};
  const size_t length = decode_utf8(text, 0).length;
  return {text.substr(0, length), length};
}

std::string SentencePieceNormalizer::apply(std::string_view text) const {
  if (remove_extra_) {
    while (!text.empty()) {
      const Prefix first = prefix(text);
      if (first.text != " ") break;
      text.remove_prefix(first.length);
    }
  }
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (add_dummy_prefix_) out += space_;
  bool after_space = remove_extra_;
  while (!text.empty()) {
    Prefix next = prefix(text);
    text.remove_prefix(next.length);
    while (after_space && next.text.substr(0, 1) == " ") next.text.remove_prefix(1);
    if (next.text.empty()) continue;
    append(next.text, out);
    after_space = remove_extra_ && next.text.back() == ' ';
  }
  while (remove_extra_ && out.ends_with(space_)) out.resize(out.size() - space_.size());
  return out;
}

void SentencePieceNormalizer::append(std::string_view text, std::string& out) const {
  for (const char c : text) {
    if (c == ' ') {
      out += space_;
    } else {
      out += c;
    }
  }
}

}  // namespace titan::data
