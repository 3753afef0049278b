#pragma once

// What a daemon decided, one line for each decision, for whoever wants to know next week why something happened. Not
// for what happens all the time: beats, steps and checkpoints have metrics and events.

#include <initializer_list>
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

class Journal {
 public:
  virtual ~Journal() = default;
  // Thread-safe; must not block for long.
  virtual void write(const Line& line) = 0;
};

// "2026-11-22T05:04:03.021Z info event=..." on stderr, each line in one write: for systemd's journal or a file.
class StderrJournal : public Journal {
 public:
  void write(const Line& line) override;
};

}  // namespace titan::journal
