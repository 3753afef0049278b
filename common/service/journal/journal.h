#pragma once

// A daemon's journal: one line for each decision, so that an operator can see later why something happened. Frequent
// things (beats, steps, checkpoints) belong in metrics and events instead.

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

// Writes to stderr, each line in one write(2).
class StderrJournal : public Journal {
 public:
  struct Options {
    bool json = false;
    bool priorities = false;  // Prefixes such as "<4>" for a warning, which systemd's journal reads as the priority.
  };
  explicit StderrJournal(Options options) : options_(options) {}
  using Journal::write;
  void write(const Line& line) override;

 private:
  const Options options_;
};

// Keeps the newest lines in memory, for support bundles, and passes each line on.
class RecentLines : public Journal {
 public:
  // `limit` is in bytes of kept text. The newest line is kept even if it is longer.
  RecentLines(std::shared_ptr<Journal> next, size_t limit) : next_(std::move(next)), limit_(limit) {}
  using Journal::write;
  void write(const Line& line) override;
  std::vector<std::string> lines() const;  // Formatted by as_text(), oldest first.

 private:
  const std::shared_ptr<Journal> next_;
  const size_t limit_;
  mutable sync::Mutex mutex_;
  std::deque<std::string> lines_ TITAN_GUARDED_BY(mutex_);
  size_t bytes_ TITAN_GUARDED_BY(mutex_) = 0;
};

// Values of --log-format; the first is the default.
inline constexpr char kText[] = "text";
inline constexpr char kJson[] = "json";
// Returns a journal on stderr in `form` (kText or kJson), with priorities when stderr is systemd's journal
// (JOURNAL_STREAM).
std::shared_ptr<Journal> on_stderr(const std::string& form);

}  // namespace titan::journal
