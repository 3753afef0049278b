#pragma once

// Defines one line of a daemon's journal and its text and JSON forms.

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
  std::string event;  // In CamelCase, like the reason of an event.
  std::vector<std::pair<std::string, std::string>> fields;

  // Adds a field unless its value is empty.
  Line& add(std::string key, std::string value);
};

// Returns "event=NodeLost node=n1 message=\"silent for 5 s\"", always one line. Values with blanks, '=', quotes,
// backslashes or control characters are quoted. Quotes and backslashes are escaped, control characters become blanks.
std::string format(const Line& line);
// Return "2026-11-22T05:04:03.021Z info event=..." and {"time": ..., "level": "info", "event": ..., and the fields}.
std::string as_text(const Line& line, absl::Time at);
std::string as_json(const Line& line, absl::Time at);

}  // namespace titan::journal
