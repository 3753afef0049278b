#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "controller/scheduler/scheduler.h"

namespace titan::core {

// The scheduler with its inputs (the nodes, the owners of their devices, and the jobs that wait for devices), and the
// jobs that wait for something else first. Every change reaches the scheduler at once, so that its next cycle sees it.
//
// A job owns devices under its uid: those of its attempt and, while it is held back, those that it will come back to. A
// stray owns its devices under stray_owner().
class SchedulingQueue {
 public:
  void set_node(scheduler::NodeProperties node) { scheduler_.set_node(std::move(node)); }
  void remove_node(const std::string& node) { scheduler_.remove_node(node); }

  // Claims devices for the owner and returns them: `devices` or, if that is empty, up to `count` free ones.
  std::vector<int> claim(const std::string& owner, const std::string& node, std::vector<int> devices, int count,
                         absl::Time ends = absl::InfiniteFuture());
  void release(const std::string& owner, const std::string& node) { scheduler_.release(owner, node); }
  // Sets when the owner's devices on the node are expected to be free.
  void expect_end(const std::string& owner, const std::string& node, absl::Time ends);

  // Keeps the job out of the scheduler's queue until enter(). Of its devices only `held`, by node, stay claimed for it.
  void hold_back(const std::string& uid, const std::map<std::string, std::vector<int>>& held, absl::Time ends);
  // Adds the job to the scheduler's queue. After `prefers_until`, take_expired_preferences() returns it, so that the
  // caller can end its reservation and avoidance.
  void enter(scheduler::PendingJob job, std::optional<absl::Duration> prefers_until);
  // Forgets the job's `prefers_until`, since its attempt got devices.
  void place(const std::string& uid) { prefers_until_.erase(uid); }
  void leave(const std::string& uid);  // Removes the job and releases its devices.

  bool waits(const std::string& uid) const { return scheduler_.waits(uid); }
  const std::set<std::string>& held_back() const { return held_back_; }
  // Returns the jobs whose `prefers_until` has passed, each once.
  std::vector<std::string> take_expired_preferences(absl::Duration now);
  bool has_work() const { return scheduler_.has_work(); }
  std::vector<scheduler::Outcome> cycle(absl::Time now) { return scheduler_.cycle(now); }
  std::optional<scheduler::Misfit> misfit(const scheduler::PendingJob& job) const { return scheduler_.misfit(job); }

 private:
  scheduler::Scheduler scheduler_;
  std::set<std::string> held_back_;  // Uids of waiting jobs that are not in the scheduler's queue yet.
  std::map<std::string, absl::Duration> prefers_until_;  // By uid.
};

}  // namespace titan::core
