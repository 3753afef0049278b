#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>

#include "common/base/sync/sync.h"

namespace titan::cli {

// While it lives, a thread looks five times a second at all processes that started after it and have `mark`
// ("NAME=value") in their initial environment, and records the maximum of their total memory. Shared pages are divided
// among the processes that share them (PSS). Looking takes about a millisecond per process.
class PeakMemory {
 public:
  explicit PeakMemory(std::string mark);
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  // Returns the maximum so far; 0 where /proc reports nothing.
  int64_t bytes() const { return bytes_.load(); }

 private:
  void watch();
  int64_t look();
  bool carries_mark(pid_t pid);

  const std::string mark_;
  std::atomic<int64_t> bytes_ = 0;
  // Processes that existed before. Ended ones are removed, since a pid may be reused.
  std::set<pid_t> others_;
  std::set<pid_t> ours_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  bool over_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::cli
