#pragma once

// One line of a daemon's journal.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace titan::journal {

enum class Level { kInfo, kWarning, kError };
absl::string_view name(Level level);

struct Line {
  Level level = Level::kInfo;
  std::string event;  // CamelCase, as an event's reason.
  std::vector<std::pair<std::string, std::string>> fields;

  // Leaves out what is empty.
  Line& add(std::string key, std::string value);
};

// "event=NodeLost node=n1 message=\"silent for 5 s\"": values with blanks, quotes or control characters are quoted,
// with backslashes before quotes and backslashes; always one line.
std::string format(const Line& line);
// "2026-11-22T05:04:03.021Z info event=...", or {"time": ..., "level": "info", "event": ..., and the fields}.
std::string as_text(const Line& line, absl::Time at);
std::string as_json(const Line& line, absl::Time at);

}  // namespace titan::journal
