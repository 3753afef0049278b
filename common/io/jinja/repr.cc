#include "common/io/jinja/repr.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/jinja/text.h"

namespace titan::jinja {
namespace {

// Characters beyond ASCII that repr() prints unchanged, in ranges where every one is assigned and printable in all
// newer versions of Unicode. Others are refused, because their output depends on Python's version.
constexpr std::pair<uint32_t, uint32_t> kPrinted[] = {
    {0xA1, 0xAC},     {0xAE, 0x377},    {0x391, 0x3A1},     {0x3A3, 0x52F},    {0x5D0, 0x5EA},   {0x620, 0x6DC},
    {0x900, 0x97F},   {0xE01, 0xE3A},   {0x1E00, 0x1F15},   {0x2010, 0x2027},  {0x2030, 0x205E}, {0x20A0, 0x20C0},
    {0x2190, 0x2426}, {0x2460, 0x2B73}, {0x3001, 0x303F},   {0x3041, 0x3096},  {0x30A0, 0x30FF}, {0x4E00, 0x9FFC},
    {0xAC00, 0xD7A3}, {0xFF01, 0xFF5E}, {0x1F300, 0x1F6D7}, {0x1F910, 0x1F9FF}};

bool is_printed(uint32_t code) {
  if (code < 0x7F) return code >= 0x20;
  return std::any_of(std::begin(kPrinted), std::end(kPrinted),
                     [&](const auto& range) { return code >= range.first && code <= range.second; });
}

absl::StatusOr<std::string> quoted(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const std::string_view bytes = std::string_view(text).substr(at, c.bytes);
    at += c.bytes;
    if (c.code == static_cast<uint32_t>(quote) || c.code == '\\') {
      out += "\\" + std::string(bytes);
    } else if (c.code == '\n' || c.code == '\r' || c.code == '\t') {
      absl::StrAppend(&out, c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t");
    } else if (is_printed(c.code)) {
      out += bytes;
    } else if (c.code < 0xA1 || c.code == 0xAD) {
      absl::StrAppendFormat(&out, "\\x%02x", c.code);
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "U+%04X inside a list or mapping that is printed: use the filter \"tojson\" in the template", c.code));
    }
  }
  return out += quote;
}

absl::StatusOr<std::string> repr(Run& run, const Value& value);

absl::StatusOr<std::string> sequence_text(Run& run, const Sequence& sequence) {
  const bool tuple = sequence.kind == Sequence::Kind::kTuple;
  if (!tuple && sequence.kind != Sequence::Kind::kList) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", type_name(list({}, sequence.kind)), " cannot be printed: use the filter \"list\""));
  }
  std::string out = tuple ? "(" : "[";
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    TITAN_ASSIGN_OR_RETURN(const std::string item, repr(run, sequence.items[i]));
    absl::StrAppend(&out, i > 0 ? ", " : "", item);
  }
  if (tuple && sequence.items.size() == 1) out += ",";
  return out += tuple ? ")" : "]";
}

absl::StatusOr<std::string> mapping_text(Run& run, const Mapping& mapping) {
  std::string out = "{";
  for (const auto& [key, value] : mapping.entries) {
    TITAN_ASSIGN_OR_RETURN(const std::string name, repr(run, key));
    TITAN_ASSIGN_OR_RETURN(const std::string item, repr(run, value));
    absl::StrAppend(&out, out.size() > 1 ? ", " : "", name, ": ", item);
  }
  return out += "}";
}

absl::StatusOr<std::string> repr(Run& run, const Value& value) {
  TITAN_RETURN_IF_ERROR(run.spend(1));
  if (const std::string* text = as_text(value)) return quoted(*text);
  if (is_undefined(value)) return "Undefined";
  return to_text(run, value);
}

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char digits[64];
  const double size = std::fabs(number);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number, format);
  std::string text(std::begin(digits), end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

absl::StatusOr<std::string> to_text(Run& run, const Value& value) {
  TITAN_RETURN_IF_ERROR(run.spend(extent_of(value).weight));
  if (is_undefined(value)) return "";
  if (is_none(value)) return "None";
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  if (const auto* whole = std::get_if<int64_t>(&value)) return absl::StrCat(*whole);
  if (const auto* real = std::get_if<double>(&value)) return float_text(*real);
  if (const std::string* text = as_text(value)) return *text;
  if (const Sequence* sequence = as_sequence(value)) return sequence_text(run, *sequence);
  if (const Mapping* entries = as_mapping(value)) return mapping_text(run, *entries);
  return absl::InvalidArgumentError(absl::StrCat("a ", type_name(value), " cannot be printed"));
}

namespace {

class JsonWriter {
 public:
  JsonWriter(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  absl::Status write(const Value& value, int depth) {
    TITAN_RETURN_IF_ERROR(run_.spend(1));
    if (is_none(value)) return add("null");
    if (const auto* flag = std::get_if<bool>(&value)) return add(*flag ? "true" : "false");
    if (const auto* whole = std::get_if<int64_t>(&value)) return add(absl::StrCat(*whole));
    if (const auto* real = std::get_if<double>(&value)) return add(number(*real));
    if (const std::string* text = as_text(value)) return add(quote(*text));
    const Sequence* sequence = as_sequence(value);
    const bool array =
        sequence != nullptr && (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple);
    if (array) return write_array(*sequence, depth);
    if (const Mapping* entries = as_mapping(value)) return write_object(*entries, depth);
    return absl::InvalidArgumentError(absl::StrCat("a ", type_name(value), " cannot be written as JSON"));
  }

  std::string take() { return std::move(out_); }

 private:
  absl::Status add(std::string_view text) {
    out_ += text;
    return run_.check_bytes(static_cast<int64_t>(out_.size()) < 64 ? 0 : static_cast<int64_t>(text.size()));
  }

  static std::string number(double real) {
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
    return float_text(real);
  }

  std::string quote(const std::string& text) const {
    std::string out = "\"";
    for (size_t at = 0; at < text.size();) {
      const Character c = character_at(text, at);
      constexpr std::pair<uint32_t, const char*> kShort[] = {
          {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}, {'\f', "\\f"}, {'\b', "\\b"}};
      const auto* known =
          std::find_if(std::begin(kShort), std::end(kShort), [&](const auto& entry) { return entry.first == c.code; });
      if (known != std::end(kShort)) {
        out += known->second;
      } else if (c.code < 0x20 || (style_.ascii && c.code >= 0x7F && c.code < 0x10000)) {
        absl::StrAppendFormat(&out, "\\u%04x", c.code);
      } else if (style_.ascii && c.code >= 0x10000) {
        absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD800 + ((c.code - 0x10000) >> 10),
                              0xDC00 + ((c.code - 0x10000) & 0x3FF));
      } else {
        out += text.substr(at, c.bytes);
      }
      at += c.bytes;
    }
    return out += '"';
  }

  absl::Status new_line(int depth) {
    if (!style_.indent) return absl::OkStatus();
    TITAN_RETURN_IF_ERROR(add("\n"));
    for (int level = 0; level < depth; ++level) TITAN_RETURN_IF_ERROR(add(*style_.indent));
    return absl::OkStatus();
  }

  absl::Status write_array(const Sequence& sequence, int depth) {
    if (sequence.items.empty()) return add("[]");
    TITAN_RETURN_IF_ERROR(add("["));
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) TITAN_RETURN_IF_ERROR(add(style_.comma));
      TITAN_RETURN_IF_ERROR(new_line(depth + 1));
      TITAN_RETURN_IF_ERROR(write(sequence.items[i], depth + 1));
    }
    TITAN_RETURN_IF_ERROR(new_line(depth));
    return add("]");
  }

  absl::StatusOr<std::string> key(const Value& value) {
    if (const std::string* text = as_text(value)) return quote(*text);
    if (is_none(value) || as_number(value)) {
      JsonWriter inner(run_, style_);
      TITAN_RETURN_IF_ERROR(inner.write(value, 0));
      return absl::StrCat("\"", inner.take(), "\"");
    }
    return absl::InvalidArgumentError(absl::StrCat("a ", type_name(value), " cannot be a key of JSON"));
  }

  absl::Status write_object(const Mapping& mapping, int depth) {
    if (mapping.entries.empty()) return add("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : mapping.entries) entries.push_back(&entry);
    if (style_.sorted) TITAN_RETURN_IF_ERROR(sort(entries));
    TITAN_RETURN_IF_ERROR(add("{"));
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) TITAN_RETURN_IF_ERROR(add(style_.comma));
      TITAN_RETURN_IF_ERROR(new_line(depth + 1));
      TITAN_ASSIGN_OR_RETURN(const std::string name, key(entries[i]->first));
      TITAN_RETURN_IF_ERROR(add(absl::StrCat(name, style_.colon)));
      TITAN_RETURN_IF_ERROR(write(entries[i]->second, depth + 1));
    }
    TITAN_RETURN_IF_ERROR(new_line(depth));
    return add("}");
  }

  static absl::Status sort(std::vector<const std::pair<Value, Value>*>& entries) {
    absl::Status status;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto* one, const auto* other) {
      const absl::StatusOr<int> order = compare(one->first, other->first);
      status.Update(order.status());
      return order.value_or(0) < 0;
    });
    return status;
  }

  Run& run_;
  const JsonStyle style_;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> to_json_text(Run& run, const Value& value, const JsonStyle& style) {
  JsonWriter writer(run, style);
  TITAN_RETURN_IF_ERROR(writer.write(value, 0));
  return writer.take();
}

}  // namespace titan::jinja
