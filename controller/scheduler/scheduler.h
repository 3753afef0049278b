#pragma once

// Who runs where, kept up to date event by event. Pure: no clock, disk, socket or lock; the same events give the same
// outcomes.
//
//   on start          set_node and occupy for everything in the store, add_job for what waits, restore
//   node              set_node when it registers, changes or is lost (ready = false); remove_node when it is deleted
//   job               add_job when it may run; remove_job when it is cancelled; its backoff is the caller's
//   each tick         cycle: for runs, start an attempt, whose devices are claimed for the job's uid already
//   attempt           release(uid, node) as its parts end, or release(uid)
//
// A job that recovers is added with `recovering` and, as `reserved`, the devices of its parts that are well; then its
// claims are released. Claims come from whoever has devices: attempts, strays (under an owner name of their own), a
// device that is broken.

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

  // Adds the node or replaces what is known of it. Claims on it stay.
  void set_node(Node node);
  void remove_node(const std::string& name);

  // Adds the job to the queue, or replaces it there.
  void add_job(Job job);
  // Without effect when it does not wait.
  void remove_job(const std::string& uid);

  // The owner has these devices too, and is expected to have all it has on the node until `ends`. The node may be
  // unknown yet, a device may have several owners, and numbers that the node does not have are of no effect.
  void occupy(const std::string& owner, const std::string& node, const std::vector<int>& devices,
              absl::Time ends = absl::InfiniteFuture());
  // What the owner has, everywhere or on one node, is free unless another owner has it too.
  void release(const std::string& owner);
  void release(const std::string& owner, const std::string& node);

  // Places jobs and says why others wait: only what is new since the last cycle. Placed jobs have left the queue.
  std::vector<Outcome> cycle(absl::Time now, const Limits& limits = {});
  // Whether a cycle may have anything to do.
  bool has_work() const;

  // Why the job could never run on the nodes known, were all of them ready and idle; nothing when it could.
  std::optional<Misfit> misfit(const Job& job) const;

  // At most one for each kind of device. Given back to a new scheduler, it decides as this one would; without, the
  // first job that waits gets a new promise.
  std::vector<Reservation> reservations() const;
  void restore(const Reservation& reservation);

  bool waits(const std::string& uid) const { return jobs_.contains(uid); }
  size_t num_waiting() const { return jobs_.size(); }
  // Devices that nobody claims or holds, ascending. Empty for a node that is not known.
  std::vector<int> free_devices(const std::string& node) const;

 private:
  Pool& pool(const std::string& device);
  void count(const NodeState& node, int sign);
  void touched(const std::vector<NodeState*>& nodes);
  Place place_of(const Job& job) const;

  Order order_;
  Ledger ledger_;
  NodeTotals totals_;
  std::map<std::string, std::unique_ptr<Pool>> pools_;  // By kind of device.
  std::unordered_map<std::string, std::unique_ptr<Waiting>> jobs_;
};

}  // namespace titan::scheduler
