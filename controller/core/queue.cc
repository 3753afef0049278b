#include "controller/core/queue.h"

#include <algorithm>
#include <utility>

namespace titan::core {

std::vector<int> SchedulingQueue::claim(const std::string& owner, const std::string& node, std::vector<int> devices,
                                        int count, absl::Time ends) {
  if (devices.empty()) {
    devices = scheduler_.free_devices(node);
    devices.resize(std::min(devices.size(), static_cast<size_t>(count)));
  }
  scheduler_.occupy(owner, node, devices, ends);
  return devices;
}

void SchedulingQueue::expect_end(const std::string& owner, const std::string& node, absl::Time ends) {
  scheduler_.occupy(owner, node, {}, ends);
}

void SchedulingQueue::hold_back(const std::string& uid, const std::map<std::string, std::vector<int>>& held,
                                absl::Time ends) {
  scheduler_.remove_job(uid);
  scheduler_.release(uid);
  for (const auto& [node, devices] : held) scheduler_.occupy(uid, node, devices, ends);
  held_back_.insert(uid);
}

void SchedulingQueue::enter(scheduler::PendingJob job, std::optional<absl::Duration> prefers_until) {
  const std::string uid = job.uid;
  scheduler_.add_job(std::move(job));
  scheduler_.release(uid);
  held_back_.erase(uid);
  if (prefers_until) prefers_until_.emplace(uid, *prefers_until);
}

void SchedulingQueue::leave(const std::string& uid) {
  scheduler_.remove_job(uid);
  scheduler_.release(uid);
  held_back_.erase(uid);
  prefers_until_.erase(uid);
}

std::vector<std::string> SchedulingQueue::take_expired_preferences(absl::Duration now) {
  std::vector<std::string> over;
  for (const auto& [uid, until] : prefers_until_) {
    if (now > until) over.push_back(uid);
  }
  for (const std::string& uid : over) prefers_until_.erase(uid);
  return over;
}

}  // namespace titan::core
