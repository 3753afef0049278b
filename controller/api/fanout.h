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

// Wakes readers on a thread of its own, so that what became durable is answered, and the next fsync begins, without
// waiting for any of them. Who follows one job is woken by its changes alone.
class Fanout : public reconcile::Waker {
 public:
  explicit Fanout(const reconcile::Published& published);
  ~Fanout() override;

  // `job`: full name; empty: woken by everything. Held weakly.
  void add(const std::string& job, std::weak_ptr<reconcile::Waker> reader);
  // There is something new. Only says so to the thread.
  void wake() override;

 private:
  using Readers = std::vector<std::weak_ptr<reconcile::Waker>>;

  void run();
  // Whose jobs have changed since the last time; everyone's when that is not known.
  std::vector<std::shared_ptr<reconcile::Waker>> concerned();
  void forget_gone() TITAN_REQUIRES(mutex_);

  const reconcile::Published& published_;
  int64_t cursor_;  // Of the thread.
  sync::Mutex mutex_;
  sync::Condition woken_;
  Readers of_all_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Readers> of_job_ TITAN_GUARDED_BY(mutex_);
  int added_ TITAN_GUARDED_BY(mutex_) = 0;  // Since those that are gone were last forgotten.
  bool news_ TITAN_GUARDED_BY(mutex_) = false, ending_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::api
