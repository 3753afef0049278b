#include "common/plan/config/raw.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/utf8.h"

namespace titan::config {
namespace {

constexpr std::size_t kMaxShownLength = 120;

std::string full(const RawValue& raw) {
  switch (raw.kind) {
    case RawValue::Kind::kNull:
      return "null";
    case RawValue::Kind::kBool:
      return raw.boolean ? "true" : "false";
    case RawValue::Kind::kInt:
      return absl::StrCat(raw.integer);
    case RawValue::Kind::kFloat:
      return raw.text.empty() ? absl::StrCat(raw.number) : raw.text;
    case RawValue::Kind::kString:
      return absl::StrCat("\"", raw.text, "\"");
    case RawValue::Kind::kWord:
    case RawValue::Kind::kOther:
      return raw.text;
    case RawValue::Kind::kList:
      return absl::StrCat("[",
                          absl::StrJoin(raw.items, ", ",
                                        [](std::string* out, const RawValue& item) {
                                          if (out->size() < kMaxShownLength) out->append(full(item));
                                        }),
                          "]");
    case RawValue::Kind::kTable:
      return raw.members.empty() ? "{}" : absl::StrCat("{", raw.members.front().name, " ...}");
  }
  return "";
}

void flatten_into(const RawValue& table, const std::string& prefix, const std::string& file,
                  std::vector<Setting>& out) {
  for (const auto& [name, value] : table.members) {
    const std::string key = prefix.empty() ? name : absl::StrCat(prefix, ".", name);
    if (value.kind == RawValue::Kind::kTable && !value.members.empty()) {
      flatten_into(value, key, file, out);
    } else {
      out.push_back({key, value, {file, value.line}});
    }
  }
}

}  // namespace

RawValue raw_bool(bool value) {
  RawValue raw;
  raw.kind = RawValue::Kind::kBool;
  raw.boolean = value;
  return raw;
}

RawValue raw_int(std::int64_t value) {
  RawValue raw;
  raw.kind = RawValue::Kind::kInt;
  raw.integer = value;
  return raw;
}

RawValue raw_float(double value) {
  RawValue raw;
  raw.kind = RawValue::Kind::kFloat;
  raw.number = value;
  return raw;
}

RawValue raw_string(std::string value) {
  RawValue raw;
  raw.kind = RawValue::Kind::kString;
  raw.text = std::move(value);
  return raw;
}

RawValue raw_word(std::string value) {
  RawValue raw;
  raw.kind = RawValue::Kind::kWord;
  raw.text = std::move(value);
  return raw;
}

std::string replace_control_characters(std::string text, bool keep_lines) {
  const bool utf8 = text::is_utf8(text);
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (keep_lines && c == '\n') continue;
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !utf8)) c = byte < 0x20 ? ' ' : '?';
  }
  return text;
}

void make_printable(std::vector<Problem>& problems) {
  for (Problem& problem : problems) {
    for (std::string* text : {&problem.key, &problem.value, &problem.message, &problem.suggestion}) {
      *text = replace_control_characters(std::move(*text), /*keep_lines=*/true);
    }
  }
}

std::string printable(std::string text) {
  text = replace_control_characters(std::move(text), /*keep_lines=*/false);
  if (text.size() <= kMaxShownLength) return text;
  std::size_t end = kMaxShownLength;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // Does not cut inside a character.
  return absl::StrCat(text.substr(0, end), "...");
}

std::string display(const RawValue& raw) { return printable(full(raw)); }

std::string_view kind_name(RawValue::Kind kind) {
  switch (kind) {
    case RawValue::Kind::kNull:
      return "nothing";
    case RawValue::Kind::kBool:
      return "a boolean";
    case RawValue::Kind::kInt:
      return "an integer";
    case RawValue::Kind::kFloat:
      return "a number";
    case RawValue::Kind::kString:
      return "a string";
    case RawValue::Kind::kWord:
      return "a word";
    case RawValue::Kind::kList:
      return "a list";
    case RawValue::Kind::kTable:
      return "a section";
    case RawValue::Kind::kOther:
      return "a date or time";
  }
  return "";
}

std::vector<Setting> flatten(const RawValue& table, const std::string& file) {
  std::vector<Setting> out;
  flatten_into(table, "", file, out);
  return out;
}

}  // namespace titan::config
