#pragma once

#include <map>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/time/time.h"
#include "common/base/sync/sync.h"

namespace titan::checkpoint {

// Shows through the job's store that this rank's process is alive, on a separate thread and connection: a rank that
// writes for minutes is not dead. Ends silently with the store.
class Heartbeat {
 public:
  // Throws the store's exception if a second connection to it fails.
  Heartbeat(c10d::Store& store, int rank, absl::Duration every);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void beat(const std::string& key, absl::Duration every);

  const c10::intrusive_ptr<c10d::Store> store_;
  sync::Mutex mutex_;
  sync::Condition stopping_;
  bool stop_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Watches the pulses of ranks while a caller waits for them. `silence` is the limit for a rank that was heard, `start`
// for one that never was: it may still be building its model.
class HeartbeatMonitor {
 public:
  HeartbeatMonitor(c10d::Store& store, absl::Duration silence, absl::Duration start)
      : store_(store), silence_(silence), start_(start) {}

  struct Lost {
    int rank = 0;
    absl::Duration silence;  // So far, counted from the start of this watch.
  };
  // Returns those of `ranks` that have been silent for longer than their limit. Throws the store's exceptions.
  std::vector<Lost> lost(const std::vector<int>& ranks);

 private:
  struct Heard {
    int64_t beats = 0;
    absl::Duration since;
  };

  c10d::Store& store_;
  const absl::Duration silence_, start_;
  std::map<int, Heard> heard_;
};

}  // namespace titan::checkpoint
