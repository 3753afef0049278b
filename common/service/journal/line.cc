#include "common/service/journal/line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace titan::journal {
namespace {

bool is_control(unsigned char c) { return c < ' ' || c == 0x7f; }

bool is_plain(const std::string& value) {
  const auto fits = [](char c) { return !is_control(c) && c != ' ' && c != '"' && c != '\\' && c != '='; };
  return !value.empty() && std::all_of(value.begin(), value.end(), fits);
}

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text.push_back('\\');
    text.push_back(is_control(c) ? ' ' : c);
  }
  return text + "\"";
}

std::string time_text(absl::Time at) { return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone()); }

}  // namespace

absl::string_view name(Level level) {
  switch (level) {
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "info";
}

Line& Line::add(std::string key, std::string value) {
  if (!value.empty()) fields.emplace_back(std::move(key), std::move(value));
  return *this;
}

std::string format(const Line& line) {
  std::string text = absl::StrCat("event=", line.event);
  for (const auto& [key, value] : line.fields)
    absl::StrAppend(&text, " ", key, "=", is_plain(value) ? value : quoted(value));
  return text;
}

std::string as_text(const Line& line, absl::Time at) {
  return absl::StrCat(time_text(at), " ", name(line.level), " ", format(line));
}

std::string as_json(const Line& line, absl::Time at) {
  nlohmann::ordered_json object = {
      {"time", time_text(at)}, {"level", std::string(name(line.level))}, {"event", line.event}};
  for (const auto& [key, value] : line.fields) object[key] = value;
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace titan::journal
