#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>

#include "common/base/sync/sync.h"

namespace titan::cli {

// While it lives, a thread looks five times a second at all processes that were started after it and carry `mark`
// ("NAME=value") in the environment that they were started with, and keeps the most memory that they had together,
// shared pages divided among those that share them (PSS). Looking takes about a millisecond a process.
class PeakMemory {
 public:
  explicit PeakMemory(std::string mark);
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  // So far; 0 where /proc tells nothing.
  int64_t bytes() const { return bytes_.load(); }

 private:
  void watch();
  int64_t look();
  bool carries_mark(pid_t pid);

  const std::string mark_;
  std::atomic<int64_t> bytes_ = 0;
  std::set<pid_t> others_;  // There before; what ended leaves, since its number may come again.
  std::set<pid_t> ours_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  bool over_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::cli
