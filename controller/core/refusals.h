#pragma once

// Workers that were refused within the last minute, and when each refusal was last reported. A refused worker retries
// about once a second.

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace titan::core {

struct RefusedWorker {
  std::string address;
  std::string version;
  std::string instance;
  std::string reason;  // UPPER_SNAKE.
  std::string message;
  absl::Duration at;  // Monotonic time of the last refusal.
};

class RefusedWorkers {
 public:
  enum class NoteResult { kTableFull, kAlreadyReported, kReport };
  // Records a refusal. kReport: report it. kAlreadyReported: it was reported with this reason within a minute.
  // kTableFull: too many names are listed, and it was not recorded.
  NoteResult note(const std::string& node, RefusedWorker refused);
  void forget(const std::string& node);
  // Forgets the workers that were last refused more than a minute ago, and returns their names.
  std::vector<std::string> take_old(absl::Duration now);

  const RefusedWorker* find(const std::string& node) const;
  std::vector<std::string> nodes() const;

 private:
  struct Entry {
    RefusedWorker refused;
    absl::Duration said_at;
  };
  std::map<std::string, Entry> by_node_;
};

}  // namespace titan::core
