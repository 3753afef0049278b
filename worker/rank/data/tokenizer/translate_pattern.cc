#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/split_pattern.h"
#include "worker/rank/data/tokenizer/unicode_newer.h"

// Oniguruma (Ruby syntax) and PCRE2 agree on groups, alternation, quantifiers, look-around and case folding. They
// differ in what \s, \d and \p{..} match and in a few escapes, which are translated or refused here.
namespace titan::data {
namespace {

// PCRE2's \s also matches U+180E, which stopped being a space in Unicode 6.3.
constexpr const char* kSpace =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kNotSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

// Categories that the table completes. Mn and Mc are missing, because one character moved between them.
constexpr const char* kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N",  "Nd", "Nl", "No", "P", "Pc",
                                       "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs"};

class Translator {
 public:
  explicit Translator(const std::string& pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        TITAN_RETURN_IF_ERROR(escape());
      } else if (in_class_) {
        TITAN_RETURN_IF_ERROR(class_character(c));
      } else {
        TITAN_RETURN_IF_ERROR(character(c));
      }
    }
    if (in_class_) return refuse("a character class that is never closed");
    return out_;
  }

 private:
  absl::Status refuse(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("split pattern \"", pattern_, "\": ", what,
                                                   " is not supported (at offset ", at_,
                                                   "); Titan reads the patterns of byte-level BPE tokenizers"));
  }

  void copy(size_t count = 1) {
    out_.append(pattern_, at_, count);
    at_ += count;
  }

  absl::Status character(char c) {
    if (c == '^' || c == '$') return refuse("a line anchor");
    if (c == '[') {
      in_class_ = true;
      copy();
      if (at_ < pattern_.size() && pattern_[at_] == '^') copy();
      if (at_ < pattern_.size() && pattern_[at_] == ']') return refuse("']' as the first character of a class");
      return absl::OkStatus();
    }
    if (c == '(' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '?') return group();
    if (c == '}' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '+') return refuse("'+' after an interval");
    copy();
    return absl::OkStatus();
  }

  // Copies (?: (?= (?! (?<= (?<! (?> and (?i: which mean the same in both.
  absl::Status group() {
    for (const char* opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      const std::string text = opening;
      if (pattern_.compare(at_, text.size(), text) != 0) continue;
      copy(text.size());
      return absl::OkStatus();
    }
    return refuse(absl::StrCat("the group \"", pattern_.substr(at_, 4), "\""));
  }

  absl::Status class_character(char c) {
    if (c == '[') return refuse("a class inside a class");
    if (c == '&' && pattern_.compare(at_, 2, "&&") == 0) return refuse("a class intersection (&&)");
    if (c == ']') in_class_ = false;
    copy();
    return absl::OkStatus();
  }

  absl::Status escape() {
    if (at_ + 1 >= pattern_.size()) return refuse("a backslash at the end");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        return emit_set(kSpace, 2);
      case 'S':
        return in_class_ ? emit_set(kNotSpace, 2) : emit_negated(kSpace, 2);
      case 'd':
        return emit_set(category("Nd"), 2);
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'x':
        return code_point();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'v':
        break;  // Oniguruma's \v is the vertical tab; PCRE2's is any vertical space.
      default:
        if (absl::ascii_isalnum(static_cast<unsigned char>(c)))
          return refuse(absl::StrCat("the escape \\", std::string(1, c)));
    }
    if (c == 'v') {
      out_ += "\\x{b}";
      at_ += 2;
      return absl::OkStatus();
    }
    copy(2);
    return absl::OkStatus();
  }

  absl::Status emit_set(const std::string& set, size_t consumed) {
    absl::StrAppend(&out_, in_class_ ? "" : "[", set, in_class_ ? "" : "]");
    at_ += consumed;
    return absl::OkStatus();
  }
  absl::Status emit_negated(const std::string& set, size_t consumed) {
    absl::StrAppend(&out_, "[^", set, "]");
    at_ += consumed;
    return absl::OkStatus();
  }

  // Copies \x{1F600}, which means the same in both. Refuses \x41, which patterns do not use.
  absl::Status code_point() {
    const size_t close = pattern_.find('}', at_);
    if (pattern_.compare(at_ + 2, 1, "{") != 0 || close == std::string::npos) return refuse("\\x without braces");
    copy(close + 1 - at_);
    return absl::OkStatus();
  }

  // Accepts \p{L}, \P{L} and \p{^L}; Oniguruma itself rejects \pL.
  absl::Status property(bool negated) {
    const size_t close = pattern_.find('}', at_);
    if (pattern_.compare(at_ + 2, 1, "{") != 0 || close == std::string::npos) return refuse("\\p without braces");
    std::string name = pattern_.substr(at_ + 3, close - at_ - 3);
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    bool known = false;
    for (const char* category : kCategories) known = known || name == category;
    if (!known) return refuse(absl::StrCat("the character property \"", name, "\""));
    if (negated && in_class_) return refuse("a negated property inside a class");
    const size_t consumed = close + 1 - at_;
    return negated ? emit_negated(category(name), consumed) : emit_set(category(name), consumed);
  }

  static std::string category(const std::string& name) {
    std::string set = absl::StrCat("\\p{", name, "}");
    for (const CategoryRange& range : kNewerCharacters) {
      if (std::string(range.category).compare(0, name.size(), name) != 0) continue;
      absl::StrAppendFormat(&set, "\\x{%x}", range.first);
      if (range.first != range.last) absl::StrAppendFormat(&set, "-\\x{%x}", range.last);
    }
    return set;
  }

  const std::string& pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> translate_pattern(const std::string& pattern) { return Translator(pattern).run(); }

}  // namespace titan::data
