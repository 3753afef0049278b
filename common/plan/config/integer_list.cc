#include "common/plan/config/integer_list.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace titan::config {

std::optional<std::vector<Raw>> integers_of(const Raw& raw) {
  if (raw.kind == Raw::Kind::kList) return raw.items;
  if (raw.kind == Raw::Kind::kInt) return std::vector<Raw>{raw};
  if (raw.kind != Raw::Kind::kString && raw.kind != Raw::Kind::kWord) return std::nullopt;
  absl::string_view text = absl::StripAsciiWhitespace(raw.text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<Raw> items;
  for (const auto piece : absl::StrSplit(text, ',')) {
    const auto word = absl::StripAsciiWhitespace(piece);
    if (!word.empty()) items.push_back(raw_word(std::string(word)));
  }
  return items;
}

}  // namespace titan::config
