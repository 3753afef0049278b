#include "common/io/tokenizer_files/not_applied.h"

#include "absl/strings/str_cat.h"

namespace titan::tokenizer_files {
namespace {

// Whether the file has `key` with an object. Looks at the text alone, since a vocabulary takes long to parse: there, a
// token of this name has a number, and inside a string the quotes would be escaped.
bool has_object(const std::string& text, const std::string& key) {
  const std::string quoted = "\"" + key + "\"";
  const auto next_sign = [&text](size_t at) { return text.find_first_not_of(" \t\r\n", at); };
  for (size_t at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at + 1)) {
    const size_t colon = next_sign(at + quoted.size());
    if (colon == std::string::npos || text[colon] != ':') continue;
    const size_t value = next_sign(colon + 1);
    if (value != std::string::npos && text[value] == '{') return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> not_applied(const Found& found) {
  std::vector<std::string> notes;
  if (found.kind != FileKind::kJson) return notes;
  if (has_object(found.bytes, "truncation")) {
    notes.push_back(absl::StrCat(found.path,
                                 ": \"truncation\" is not applied: texts keep all their tokens, where tokenizers and "
                                 "torchtitan cut them; set it to null to say that this is meant"));
  }
  if (has_object(found.bytes, "padding")) {
    notes.push_back(absl::StrCat(found.path,
                                 ": \"padding\" is not applied: no token is added to short texts; set it to null to "
                                 "say that this is meant"));
  }
  return notes;
}

std::vector<std::string> not_applied(const std::string& folder) {
  const auto found = find_tokenizer(folder);
  return found.ok() ? not_applied(*found) : std::vector<std::string>{};
}

}  // namespace titan::tokenizer_files
