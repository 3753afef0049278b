#pragma once

// Reads JSON as Python's json module does, event by event, and decodes the strings that it finds. Rows of datasets are
// written so, and other readers of them take it: besides strict JSON the numbers NaN, Infinity and -Infinity, numbers
// of any length and size, keys that occur twice, and escapes of lone surrogates.

#include <cstdint>
#include <string>
#include <string_view>

namespace titan::json {

// What the reader finds next in the text.
enum class Event {
  kNull,
  kTrue,
  kFalse,
  kNumber,
  kString,
  kKey,
  kBeginObject,
  kEndObject,
  kBeginArray,
  kEndArray,
  kEnd,    // The text is one whole value.
  kError,  // It is not JSON; wrong() says why. Every later event is the same.
};

// The events of one value, in order. Nothing is copied, no depth is too great. The text has to be UTF-8, which the
// caller checks (common/base/text/utf8.h): this reader looks only at ASCII.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Event next();

  // Of kNumber the number as it is written; of kString and kKey what stands between the quotes, with its escapes, which
  // unescape() resolves.
  std::string_view token() const { return token_; }
  bool has_escapes() const { return has_escapes_; }

  // How many objects and arrays are open after the last event.
  size_t depth() const { return open_.size(); }

  // Of kError: the text ends before its value does, or else a byte that does not belong there.
  bool ends_early() const { return at_ >= text_.size(); }
  size_t at() const { return at_; }
  // Of kError: the innermost bracket that is open, '{' or '['; 0 outside of all.
  char open_bracket() const { return open_.empty() ? '\0' : open_.back(); }

 private:
  enum class Expected { kValue, kValueOrEnd, kKeyOrEnd, kCommaOrEnd, kNothing };

  Event fail();
  Event value();
  Event word(std::string_view spelling, Event event);
  Event number();
  Event string(Event event);
  Event key();
  Event begin(char bracket);
  Event end();
  bool digits();
  void skip_space();
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  void after_value() { expected_ = open_.empty() ? Expected::kNothing : Expected::kCommaOrEnd; }

  std::string_view text_;
  size_t at_ = 0;
  std::string open_;  // The brackets that are open.
  Expected expected_ = Expected::kValue;
  std::string_view token_;
  bool has_escapes_ = false;
  bool failed_ = false;
};

// Appends what a string or key that a Reader gave stands for. False when an escape of it is a lone surrogate, which no
// UTF-8 has: it is written as the three bytes that would encode it, so that whatever checks for UTF-8 refuses the text.
bool unescape(std::string_view token, std::string& out);

}  // namespace titan::json
