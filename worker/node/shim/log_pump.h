#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/host/descriptor.h"
#include "common/base/sync/sync.h"
#include "worker/node/shim/log_file.h"

namespace titan::shim {

// Copies the ranks' output from their pipes to their log files in a separate thread, so that a slow disk delays neither
// exits nor commands. Uses one buffer, whatever the ranks print.
class LogPump {
 public:
  LogPump();
  ~LogPump();  // Writes what is in the pipes and stops the thread.
  LogPump(const LogPump&) = delete;
  LogPump& operator=(const LogPump&) = delete;

  // Takes ownership of the read end (non-blocking) of a rank's pipe.
  void add(int rank, host::Descriptor pipe, LogWriter log);

  // Writes what is in the rank's pipe and returns the last line that is not empty. Call it after the rank has ended.
  std::string finish(int rank);

  struct Counts {
    int64_t dropped_bytes = 0;
    int64_t lost_bytes = 0;
  };
  Counts counts() const;

 private:
  struct Stream;
  void run();
  static bool pump(Stream& stream, int rounds);

  mutable sync::Mutex mutex_;  // Guards the list; each stream has its own lock.
  std::vector<std::shared_ptr<Stream>> streams_ TITAN_GUARDED_BY(mutex_);
  host::Descriptor wake_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace titan::shim
