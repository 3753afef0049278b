// The only file that includes toml++.
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/plan/config/raw.h"

namespace titan::config {
namespace {

template <typename T>
std::string print(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

RawValue convert(const toml::node& node);

RawValue convert_table(const toml::table& table) {
  RawValue raw;
  raw.kind = RawValue::Kind::kTable;
  for (auto&& [key, value] : table) {
    raw.members.push_back({std::string(key.str()), convert(value)});
    // The line of a value is that of its first character; dotted keys and table headers have the line of their key.
    if (raw.members.back().value.line == 0) raw.members.back().value.line = static_cast<int>(key.source().begin.line);
  }
  // toml++ sorts tables by name; messages follow the order of the file.
  std::stable_sort(raw.members.begin(), raw.members.end(),
                   [](const auto& a, const auto& b) { return a.value.line < b.value.line; });
  return raw;
}

RawValue convert(const toml::node& node) {
  RawValue raw;
  if (const auto* table = node.as_table()) {
    raw = convert_table(*table);
  } else if (const auto* array = node.as_array()) {
    raw.kind = RawValue::Kind::kList;
    for (const toml::node& item : *array) raw.items.push_back(convert(item));
  } else if (const auto* text = node.as_string()) {
    raw = raw_string(text->get());
  } else if (const auto* integer = node.as_integer()) {
    raw = raw_int(integer->get());
  } else if (const auto* number = node.as_floating_point()) {
    raw = raw_float(number->get());
  } else if (const auto* boolean = node.as_boolean()) {
    raw = raw_bool(boolean->get());
  } else {
    raw.kind = RawValue::Kind::kOther;
    if (const auto* date = node.as_date()) raw.text = print(*date);
    if (const auto* time = node.as_time()) raw.text = print(*time);
    if (const auto* date_time = node.as_date_time()) raw.text = print(*date_time);
  }
  raw.line = static_cast<int>(node.source().begin.line);
  return raw;
}

}  // namespace

RawValue read_toml(std::string_view text, const std::string& file, std::vector<Problem>& problems) {
  try {
    return convert_table(toml::parse(text));
  } catch (const toml::parse_error& error) {
    problems.push_back({{file, static_cast<int>(error.source().begin.line)},
                        "",
                        "",
                        absl::StrCat("not valid TOML: ", std::string(error.description())),
                        ""});
    return {};
  }
}

}  // namespace titan::config
