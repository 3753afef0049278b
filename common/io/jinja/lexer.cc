#include "common/io/jinja/lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/io/jinja/text.h"

namespace titan::jinja {

absl::Status wrong(const SourceLocation& place, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", place.line, ", column ", place.column, ": ", std::string(what)));
}

namespace {

// Converts line ends to \n, and drops one at the very end.
std::string with_plain_lines(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    plain += text[i] == '\r' ? '\n' : text[i];
  }
  if (!plain.empty() && plain.back() == '\n') plain.pop_back();
  return plain;
}

bool is_name(char c) { return absl::ascii_isalnum(c) || c == '_'; }

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                           "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  absl::StatusOr<std::vector<Token>> run() {
    while (at_ < text_.size()) TITAN_RETURN_IF_ERROR(next());
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // Reads the text up to a tag, and the tag.
  absl::Status next() {
    const size_t tag = find_tag(at_);
    if (tag == std::string::npos) {
      add_text(text_.size());
      move_to(text_.size());
      return absl::OkStatus();
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    const bool signed_tag = sign == '-' || sign == '+';
    add_text(text_end(tag, kind, signed_tag ? sign : ' '));
    move_to(tag);
    begun_ = place_;
    move_to(tag + (signed_tag ? 3 : 2));
    if (kind == '#') return comment();
    if (kind == '%' && is_raw()) return raw();
    add(kind == '%' ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "", begun_);
    return inside(kind);
  }

  size_t find_tag(size_t from) const {
    for (size_t at = text_.find('{', from); at != std::string::npos && at + 1 < text_.size();
         at = text_.find('{', at + 1)) {
      if (text_[at + 1] == '{' || text_[at + 1] == '%' || text_[at + 1] == '#') return at;
    }
    return std::string::npos;
  }

  // Returns where the text before a tag ends: before its white space when the tag says so, or before the indentation of
  // a block that is first on its line.
  size_t text_end(size_t tag, char kind, char sign) const {
    const std::string_view text = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') return at_ + strip(text, std::nullopt, false, true).size();
    if (sign == '+' || kind == '{') return tag;
    const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0.
    if (line == 0 && at_ > 0 && text_[at_ - 1] != '\n') return tag;
    return strip(text.substr(line), std::nullopt, true, false).empty() ? at_ + line : tag;
  }

  void add_text(size_t end) {
    if (end > at_) add(Token::Kind::kText, text_.substr(at_, end - at_));
  }

  bool comes(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }

  // Consumes the end of a tag, such as "%}", with the white space that belongs to it. Returns false when something else
  // comes.
  bool end_of_tag(std::string_view end) {
    const bool block = end != "}}";
    const bool signed_end = comes("-" + std::string(end)) || (block && comes("+" + std::string(end)));
    if (!signed_end && !comes(end)) return false;
    const char sign = signed_end ? text_[at_] : ' ';
    move_to(at_ + end.size() + (signed_end ? 1 : 0));
    if (sign == '-') skip_space();
    if (sign == ' ' && block && comes("\n")) move_to(at_ + 1);
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() && is_space(character_at(text_, at_).code)) {
      move_to(at_ + character_at(text_, at_).bytes);
    }
  }

  absl::Status comment() {
    while (at_ < text_.size()) {
      if (end_of_tag("#}")) return absl::OkStatus();
      move_to(at_ + 1);
    }
    return wrong(begun_, "the comment does not end; close it with #}");
  }

  bool is_raw() const {
    const std::string_view rest = std::string_view(text_).substr(at_);
    const std::string word = strip(rest.substr(0, 64), std::nullopt, true, false);
    return word.starts_with("raw") && (word.size() == 3 || !is_name(word[3]));
  }

  absl::Status raw() {
    skip_space();
    move_to(at_ + 3);
    skip_space();
    // Unlike other blocks, this one keeps the line end after it.
    const bool minus = comes("-%}");
    if (!minus && !comes("%}")) return wrong(place_, "raw takes no arguments; write {% raw %}");
    move_to(at_ + (minus ? 3 : 2));
    if (minus) skip_space();
    for (size_t tag = find_tag(at_); tag != std::string::npos; tag = find_tag(tag + 1)) {
      if (text_[tag + 1] != '%') continue;
      const char sign =
          tag + 2 < text_.size() && (text_[tag + 2] == '-' || text_[tag + 2] == '+') ? text_[tag + 2] : ' ';
      const std::string_view rest = std::string_view(text_).substr(tag + (sign == ' ' ? 2 : 3));
      const std::string word = strip(rest.substr(0, 64), std::nullopt, true, false);
      if (!word.starts_with("endraw")) continue;
      add_text(text_end(tag, '%', sign));
      move_to(tag + (sign == ' ' ? 2 : 3));
      skip_space();
      move_to(at_ + 6);
      skip_space();
      if (end_of_tag("%}")) return absl::OkStatus();
      return wrong(place_, "endraw takes no arguments; write {% endraw %}");
    }
    return wrong(begun_, "the raw block does not end; close it with {% endraw %}");
  }

  // Reads the tokens of an expression, up to the end of its tag.
  absl::Status inside(char kind) {
    const std::string_view end = kind == '%' ? "%}" : "}}";
    std::string open;  // The brackets that will close, innermost last.
    while (at_ < text_.size()) {
      const SourceLocation at = place_;
      if (open.empty() && end_of_tag(end)) {
        add(kind == '%' ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "", at);
        return absl::OkStatus();
      }
      const char c = text_[at_];
      if (is_space(character_at(text_, at_).code)) {
        skip_space();
      } else if (absl::ascii_isdigit(c)) {
        TITAN_RETURN_IF_ERROR(number());
      } else if (is_name(c)) {
        size_t name_end = at_;
        while (name_end < text_.size() && is_name(text_[name_end])) ++name_end;
        add(Token::Kind::kName, text_.substr(at_, name_end - at_));
        move_to(name_end);
      } else if (c == '\'' || c == '"') {
        TITAN_RETURN_IF_ERROR(string(c));
      } else {
        TITAN_RETURN_IF_ERROR(operation(open));
      }
    }
    return wrong(begun_, absl::StrCat("the tag does not end; close it with ", std::string(end)));
  }

  absl::Status number() {
    const size_t begin = at_;
    size_t at = at_;
    const auto digits = [&] {
      while (at < text_.size() && (absl::ascii_isdigit(text_[at]) || text_[at] == '_')) ++at;
    };
    digits();
    bool fraction = false;
    if (at + 1 < text_.size() && text_[at] == '.' && absl::ascii_isdigit(text_[at + 1])) {
      fraction = true;
      ++at;
      digits();
    }
    const auto exponent = [&](size_t i) { return i < text_.size() && absl::ascii_isdigit(text_[i]); };
    if (at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
      const bool sign = at + 1 < text_.size() && (text_[at + 1] == '-' || text_[at + 1] == '+');
      if (exponent(at + (sign ? 2 : 1))) {
        fraction = true;
        at += sign ? 2 : 1;
        digits();
      }
    }
    std::string digits_alone = text_.substr(begin, at - begin);
    std::erase(digits_alone, '_');
    if (at < text_.size() && is_name(text_[at])) {
      return wrong(place_, absl::StrCat("\"", text_.substr(begin, at + 1 - begin), "\" is not a supported number"));
    }
    add(fraction ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(digits_alone));
    move_to(at);
    return absl::OkStatus();
  }

  absl::Status string(char quote) {
    const SourceLocation begin = place_;
    std::string out;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] != '\\') {
        out += text_[at++];
        continue;
      }
      TITAN_RETURN_IF_ERROR(escape(at, out));
    }
    if (at >= text_.size()) return wrong(begin, "the string does not end; close it with its quote");
    add(Token::Kind::kString, std::move(out));
    move_to(at + 1);
    return absl::OkStatus();
  }

  // Decodes an escape as Python does; unknown ones stay as they are.
  absl::Status escape(size_t& at, std::string& out) const {
    const char c = at + 1 < text_.size() ? text_[at + 1] : '\0';
    constexpr std::pair<char, char> kKnown[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''},
                                                {'"', '"'},  {'a', '\a'}, {'b', '\b'}, {'f', '\f'},  {'v', '\v'}};
    for (const auto& [letter, meant] : kKnown) {
      if (c != letter) continue;
      out += meant;
      at += 2;
      return absl::OkStatus();
    }
    if (c == '\n') {  // The line continues.
      at += 2;
      return absl::OkStatus();
    }
    if (c == 'N') return wrong(place_, "\\N{...} in a string is not supported; write the character itself");
    if (c >= '0' && c <= '7') return code(at, out, at + 1, 3, 8);
    if (c == 'x' || c == 'u' || c == 'U') return code(at, out, at + 2, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
    out += '\\';
    ++at;
    return absl::OkStatus();
  }

  absl::Status code(size_t& at, std::string& out, size_t from, size_t most, uint32_t base) const {
    uint32_t code = 0;
    size_t digits = 0;
    for (; digits < most && from + digits < text_.size(); ++digits) {
      const char c = absl::ascii_tolower(text_[from + digits]);
      const uint32_t value = absl::ascii_isdigit(c) ? static_cast<uint32_t>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                                                    : 16;
      if (value >= base) break;
      code = code * base + value;
    }
    const bool whole = base == 8 || digits == most;
    if (!whole || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return wrong(place_,
                   absl::StrCat("\"", text_.substr(at, from + digits - at), "\" in a string is not a character"));
    }
    text::append_utf8(out, code);
    at = from + digits;
    return absl::OkStatus();
  }

  absl::Status operation(std::string& open) {
    for (const std::string_view known : kOperators) {
      if (!comes(known)) continue;
      TITAN_RETURN_IF_ERROR(balance(known[0], open));
      add(Token::Kind::kOperator, std::string(known));
      move_to(at_ + known.size());
      return absl::OkStatus();
    }
    const size_t bytes = character_at(text_, at_).bytes;
    return wrong(place_, absl::StrCat("\"", text_.substr(at_, bytes), "\" is not expected in an expression"));
  }

  absl::Status balance(char c, std::string& open) const {
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c != ')' && c != ']' && c != '}') return absl::OkStatus();
    if (open.empty() || open.back() != c)
      return wrong(place_, absl::StrCat("\"", std::string(1, c), "\" closes nothing"));
    open.pop_back();
    return absl::OkStatus();
  }

  void add(Token::Kind kind, std::string text) { add(kind, std::move(text), place_); }
  void add(Token::Kind kind, std::string text, const SourceLocation& place) {
    tokens_.push_back({kind, std::move(text), place});
  }

  void move_to(size_t at) {
    for (; at_ < at; ++at_) {
      ++place_.column;
      if (text_[at_] == '\n') place_ = {place_.line + 1, 1};
    }
  }

  const std::string text_;
  size_t at_ = 0;
  SourceLocation place_, begun_;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> tokens_of(std::string_view text) { return Lexer(with_plain_lines(text)).run(); }

}  // namespace titan::jinja
