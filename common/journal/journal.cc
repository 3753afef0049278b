#include "common/journal/journal.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

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

void StderrJournal::write(const Line& line) {
  const std::string text = absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                                        name(line.level), " ", format(line), "\n");
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace titan::journal
