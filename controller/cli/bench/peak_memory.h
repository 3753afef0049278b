#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "common/sync/sync.h"

namespace titan::cli {

// While it lives, a thread looks five times a second at all processes that carry `mark` ("NAME=value") in the
// environment that they were started with, and keeps the most memory that they had together, shared pages divided among
// those that share them (PSS). Looking takes about a millisecond a process.
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
  std::map<pid_t, bool> known_;  // What carries it, which a process does until its end.
  sync::Mutex mutex_;
  sync::Condition changed_;
  bool over_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::cli
