#pragma once

// What a daemon decided, one line for each decision, for whoever wants to know next week why something happened. Not
// for what happens all the time: beats, steps and checkpoints have metrics and events.

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync/sync.h"
#include "common/service/journal/line.h"

namespace titan::journal {

class Journal {
 public:
  virtual ~Journal() = default;
  // Thread-safe; must not block for long.
  virtual void write(const Line& line) = 0;

  void write(Level level, std::string event, std::string message) {
    write(Line{level, std::move(event), {}}.add("message", std::move(message)));
  }
};

// On stderr, each line in one write.
class StderrJournal : public Journal {
 public:
  struct Options {
    bool json = false;
    bool priorities = false;  // "<4>" before a warning: systemd's journal takes it for the line's priority.
  };
  explicit StderrJournal(Options options) : options_(options) {}
  using Journal::write;
  void write(const Line& line) override;

 private:
  const Options options_;
};

// Keeps the newest lines for whoever asks what happened just now, and passes each on.
class Recent : public Journal {
 public:
  // `limit`: bytes of lines that are kept.
  Recent(std::shared_ptr<Journal> next, size_t limit) : next_(std::move(next)), limit_(limit) {}
  using Journal::write;
  void write(const Line& line) override;
  std::vector<std::string> lines() const;  // As text, the oldest first.

 private:
  const std::shared_ptr<Journal> next_;
  const size_t limit_;
  mutable sync::Mutex mutex_;
  std::deque<std::string> lines_ TITAN_GUARDED_BY(mutex_);
  size_t bytes_ TITAN_GUARDED_BY(mutex_) = 0;
};

// What --log-format takes; the first one is the default.
inline constexpr char kText[] = "text";
inline constexpr char kJson[] = "json";
// The one on stderr for this process: with priorities when stderr is systemd's journal (JOURNAL_STREAM).
std::shared_ptr<Journal> on_stderr(const std::string& form);

}  // namespace titan::journal
