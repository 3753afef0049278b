#include "common/service/journal/journal.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace titan::journal {
namespace {

// Returns the prefix with the number of syslog(3).
absl::string_view priority(Level level) {
  switch (level) {
    case Level::kInfo:
      return "<6>";
    case Level::kWarning:
      return "<4>";
    case Level::kError:
      return "<3>";
  }
  return "<6>";
}

// Returns whether stderr leads to systemd's journal. JOURNAL_STREAM names a device and inode, and may be inherited from
// another process.
bool stderr_is_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat file {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &file) == 0 &&
         stream == absl::StrCat(file.st_dev, ":", file.st_ino);
}

}  // namespace

void StderrJournal::write(const Line& line) {
  const std::string text = absl::StrCat(options_.priorities ? priority(line.level) : "",
                                        options_.json ? as_json(line, absl::Now()) : as_text(line, absl::Now()), "\n");
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

void RecentLines::write(const Line& line) {
  {
    const sync::Lock lock(mutex_);
    lines_.push_back(as_text(line, absl::Now()));
    bytes_ += lines_.back().size();
    while (bytes_ > limit_ && lines_.size() > 1) {
      bytes_ -= lines_.front().size();
      lines_.pop_front();
    }
  }
  next_->write(line);
}

std::vector<std::string> RecentLines::lines() const {
  const sync::Lock lock(mutex_);
  return {lines_.begin(), lines_.end()};
}

std::shared_ptr<Journal> on_stderr(const std::string& form) {
  return std::make_shared<StderrJournal>(StderrJournal::Options{form == kJson, stderr_is_journal()});
}

}  // namespace titan::journal
