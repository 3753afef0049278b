#pragma once

// Decides which job runs on which devices, updated event by event. Pure: no clock, disk, socket or lock. The same
// events give the same outcomes.
//
//   on start          set_node and occupy for everything in the store, add_job for waiting jobs, restore
//   node              set_node when it registers, changes or is lost (ready = false); remove_node when it is deleted
//   job               add_job when it may run; remove_job when it is cancelled. The caller handles its backoff
//   each tick         cycle. Start an attempt for each placed job: its devices are claimed for the job's uid already
//   attempt           release(uid, node) as its parts end, or release(uid)
//
// Add a recovering job with `recovering` set and the devices of its healthy parts as `reserved`. Then release its
// claims. Everything that has devices claims them: attempts, strays (under a separate owner name) and broken devices.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "controller/scheduler/pool.h"
#include "controller/scheduler/types.h"

namespace titan::scheduler {

enum class Order {
  kPriorityFirst,    // Priority, then recovering jobs, then age.
  kRecoveringFirst,  // Recovering jobs, then priority, then age.
};

class Scheduler {
 public:
  explicit Scheduler(Order order = Order::kPriorityFirst) : order_(order) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Adds the node or replaces its properties. Claims on it stay.
  void set_node(NodeProperties node);
  void remove_node(const std::string& name);

  // Adds the job to the queue, or replaces it there.
  void add_job(PendingJob job);
  // Does nothing if the job does not wait.
  void remove_job(const std::string& uid);

  // Adds devices to the owner's claim on the node, which is expected to last until `ends`. The node may be unknown yet,
  // a device may have several owners, and numbers that the node does not have are ignored.
  void occupy(const std::string& owner, const std::string& node, const std::vector<int>& devices,
              absl::Time ends = absl::InfiniteFuture());
  // Ends the owner's claims, everywhere or on one node. A device that another owner claims, too, stays claimed.
  void release(const std::string& owner);
  void release(const std::string& owner, const std::string& node);

  // Places jobs and says why others wait, if that changed since the last cycle. Placed jobs have left the queue.
  std::vector<Outcome> cycle(absl::Time now, const Limits& limits = {});
  // False: a cycle would do nothing.
  bool has_work() const;

  // Explains why the job could never run on the known nodes, even if all were ready and idle. Nothing if it could.
  std::optional<Misfit> misfit(const PendingJob& job) const;

  // Returns the promises to waiting jobs, at most one for each kind of device. With them a new scheduler decides as
  // this one would. Without them the first waiting job gets a new promise.
  std::vector<Reservation> reservations() const;
  void restore(const Reservation& reservation);

  bool waits(const std::string& uid) const { return jobs_.contains(uid); }
  size_t num_waiting() const { return jobs_.size(); }
  // Returns the devices that nobody claims or holds, ascending. Empty for an unknown node.
  std::vector<int> free_devices(const std::string& node) const;

 private:
  Pool& pool(const std::string& device);
  void count(const NodeInfo& node, int sign);
  void touched(const std::vector<NodeInfo*>& nodes);
  Place place_of(const PendingJob& job) const;

  Order order_;
  Ledger ledger_;
  NodeTotals totals_;
  std::map<std::string, std::unique_ptr<Pool>> pools_;  // By kind of device.
  std::unordered_map<std::string, std::unique_ptr<Waiting>> jobs_;
};

}  // namespace titan::scheduler
