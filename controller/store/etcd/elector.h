#pragma once

// Elects the leader among several controllers: the one whose lease holds the key <prefix>leader in etcd. The key's
// create revision is the leader's epoch. It is greater for each leader, and the key is gone before the next one can
// win. Every write compares it, so that a former leader that does not know yet cannot write.

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
  std::string name;  // Address for clients, which the other controllers name while this one leads.
  absl::Duration lease = absl::Seconds(3);  // Whole seconds, at least one.
  absl::Duration keepalive = absl::Seconds(1);
  // A leader that hears nothing from etcd for this long steps down. It may be longer than the lease: nobody else leads
  // until etcd has dropped the key, and an etcd that restarts keeps its leases.
  absl::Duration timeout = absl::Seconds(10);
  absl::Duration poll = absl::Milliseconds(100);  // Time between two tries of a waiting controller.
};

class Elector {
 public:
  Elector(std::shared_ptr<EtcdClient> client, ElectorOptions options);
  // Resigns.
  ~Elector();

  // Waits until this process leads. Call it again only after DeadlineExceeded. Errors: DeadlineExceeded (names the
  // leader, or why etcd does not answer), and those of calls that etcd refuses.
  absl::Status campaign(absl::Time deadline);
  // `lost` runs once, on a thread of the elector, when this process no longer leads without having resigned.
  void watch(std::function<void(const absl::Status&)> lost);
  // Gives up the leadership: another controller can lead at once. Nothing may be written afterwards.
  void resign();

  std::string key() const { return options_.prefix + "leader"; }
  const std::string& prefix() const { return options_.prefix; }
  // Returns the epoch of this process; 0 if it has not led.
  int64_t epoch() const { return epoch_; }
  // Returns OK while this process leads, else an error whose message says why it does not.
  absl::Status leading() const;
  // Call it when a comparison with the epoch has failed.
  void declare_lost(const absl::Status& why);
  // Returns the name of the last leader that was seen; "" if none was.
  std::string holder() const;

  EtcdClient& client() { return *client_; }
  // For tests: the lease is not renewed, as if a signal had stopped the process.
  void withhold(bool withheld) { withheld_ = withheld; }

 private:
  absl::Status try_once();
  absl::Status win(int64_t lease);
  void set_holder(const std::string& holder);
  void keep();
  bool wait();

  const std::shared_ptr<EtcdClient> client_;
  const ElectorOptions options_;
  std::atomic<int64_t> epoch_{0};
  std::atomic<bool> withheld_{false};
  int64_t lease_ = 0;
  // When etcd was last known to hold the lease: the time of the request that it answered. For the elector's thread
  // only, once that runs.
  std::chrono::steady_clock::time_point confirmed_;

  mutable sync::Mutex mutex_;
  sync::Condition wake_;
  absl::Status over_ TITAN_GUARDED_BY(mutex_) = absl::FailedPreconditionError("never led");
  std::string holder_ TITAN_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> lost_ TITAN_GUARDED_BY(mutex_);  // Empty: it was called, or is not set.
  bool ending_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace titan::store
