#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/sync/sync.h"
#include "controller/reconcile/published.h"

namespace titan::api {

// Wakes readers on a separate thread, so that neither the answer for a durable change nor the next fsync waits for a
// reader. A reader that follows one job is woken only by that job's changes.
class Fanout : public reconcile::Waker {
 public:
  explicit Fanout(const reconcile::Published& published);
  ~Fanout() override;

  // `job`: full name; empty: every change wakes the reader. Holds a weak reference only.
  void add(const std::string& job, std::weak_ptr<reconcile::Waker> reader);
  // Notes that there are changes; only signals the thread.
  void wake() override;

 private:
  using Readers = std::vector<std::weak_ptr<reconcile::Waker>>;

  void run();
  // Returns the readers of all jobs, and those of each job that changed since the last call (of every job when the
  // changes are unknown).
  std::vector<std::shared_ptr<reconcile::Waker>> affected_readers();
  void remove_expired() TITAN_REQUIRES(mutex_);

  const reconcile::Published& published_;
  int64_t cursor_;  // Used by the thread.
  sync::Mutex mutex_;
  sync::Condition woken_;
  Readers all_readers_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Readers> readers_by_job_ TITAN_GUARDED_BY(mutex_);
  int added_ TITAN_GUARDED_BY(mutex_) = 0;  // Readers added since remove_expired() ran.
  bool news_ TITAN_GUARDED_BY(mutex_) = false, ending_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::api
