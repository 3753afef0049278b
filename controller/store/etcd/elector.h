#pragma once

// Which of several controllers leads: the one whose lease holds the key <prefix>leader in etcd. The key's create
// revision is the leader's epoch: greater for each leader, and gone from the key the moment the next one may win. Every
// write compares it, so that an ex-leader that does not know yet cannot write.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "controller/store/etcd/client.h"

namespace titan::store {

struct ElectorOptions {
  std::string prefix = "titan/";
  std::string name;                         // Whom the others see leading: an address that a client can go to.
  absl::Duration lease = absl::Seconds(3);  // Whole seconds, at least one.
  absl::Duration keepalive = absl::Seconds(1);
  // A leader that hears nothing from etcd for so long steps down. Longer than the lease: until etcd gives the key away
  // nobody else leads, and an etcd that restarts keeps its leases.
  absl::Duration patience = absl::Seconds(10);
  absl::Duration poll = absl::Milliseconds(100);  // How often one that waits looks.
};

class Elector {
 public:
  Elector(std::shared_ptr<EtcdClient> client, ElectorOptions options);
  // Resigns.
  ~Elector();

  // Waits until this process leads, once. Call again after DeadlineExceeded.
  // Errors: DeadlineExceeded (names who leads, or why etcd cannot be asked), those of etcd refusing.
  absl::Status campaign(absl::Time deadline);
  // `lost` runs once, on a thread of the elector's, when this process leads no longer without having resigned.
  void watch(std::function<void(const absl::Status&)> lost);
  // Gives the leadership away: another one can have it at once. Nothing may be written afterwards.
  void resign();

  std::string key() const { return options_.prefix + "leader"; }
  const std::string& prefix() const { return options_.prefix; }
  // 0: this process has not led.
  int64_t epoch() const { return epoch_; }
  // Not OK: the leadership is over, and why.
  absl::Status leading() const;
  // Called by who learns it from a comparison that failed.
  void declare_lost(const absl::Status& why);
  // Who was seen leading, by its name; empty: nobody.
  std::string holder() const;

  EtcdClient& client() { return *client_; }
  // For tests: as if the process were stopped by a signal, as far as its lease is concerned.
  void withhold(bool withheld) { withheld_ = withheld; }

 private:
  absl::Status try_once();
  absl::Status win(int64_t lease);
  void saw(const std::string& holder);
  void keep();
  bool wait();

  const std::shared_ptr<EtcdClient> client_;
  const ElectorOptions options_;
  std::atomic<int64_t> epoch_{0};
  std::atomic<bool> withheld_{false};
  int64_t lease_ = 0;
  // When etcd was last known to hold the lease: when what it answered was asked. Own thread only, once it runs.
  std::chrono::steady_clock::time_point confirmed_;

  mutable sync::Mutex mutex_;
  sync::Condition wake_;
  absl::Status over_ TITAN_GUARDED_BY(mutex_) = absl::FailedPreconditionError("never led");
  std::string holder_ TITAN_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> lost_ TITAN_GUARDED_BY(mutex_);  // Nothing: told, or nobody to tell.
  bool ending_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::store
