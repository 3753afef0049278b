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

// Moves what the ranks print from their pipes into their log files, on a thread of its own: a slow disk holds up
// neither exits nor commands. Memory is one buffer, whatever the ranks print.
class LogPump {
 public:
  LogPump();
  ~LogPump();  // Stops the thread; what lies in the pipes is written first.
  LogPump(const LogPump&) = delete;
  LogPump& operator=(const LogPump&) = delete;

  // Takes over the read end (non-blocking) of a rank's pipe.
  void add(int rank, host::Descriptor pipe, LogWriter log);

  // Writes what is in the rank's pipe now and returns the last line that is not empty. Called when the rank is gone.
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
