#pragma once

// Reads JSON as Python's json module does, event by event, and decodes the strings. Rows of datasets use this dialect.
// Beyond strict JSON it accepts the numbers NaN, Infinity and -Infinity, numbers of any length and size, duplicate
// keys, and escapes of lone surrogates.

#include <cstdint>
#include <string>
#include <string_view>

namespace titan::json {

// Kinds of events that the reader returns.
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
  kError,  // The text is not JSON; at() gives the place. Every later event is kError.
};

// Returns the events of one value, in order. Copies nothing and accepts any nesting depth. The caller checks that the
// text is UTF-8 (common/base/text/utf8.h): this reader looks only at ASCII.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Reads and returns the next event.
  Event next();

  // After kNumber, the number as written. After kString and kKey, the text between the quotes with its escapes, which
  // unescape() decodes.
  std::string_view token() const { return token_; }
  // Whether the last kString or kKey has escapes.
  bool has_escapes() const { return has_escapes_; }

  // Returns how many objects and arrays are open after the last event.
  size_t depth() const { return open_.size(); }

  // After kError: whether the text ends before its value does. Otherwise at() is the offset of the unexpected byte.
  bool ends_early() const { return at_ >= text_.size(); }
  size_t at() const { return at_; }
  // After kError: the innermost open bracket, '{' or '['; 0 outside all brackets.
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
  std::string open_;  // The open brackets, outermost first.
  Expected expected_ = Expected::kValue;
  std::string_view token_;
  bool has_escapes_ = false;
  bool failed_ = false;
};

// Appends the decoded text of a string or key token to `out`. Returns false when an escape is a lone surrogate, which
// UTF-8 cannot encode. The surrogate is written as the three bytes that would encode it, so that any UTF-8 check
// rejects the text.
bool unescape(std::string_view token, std::string& out);

}  // namespace titan::json
