#include "controller/core/jobs.h"

#include <algorithm>
#include <utility>

namespace titan::core {

void PlacedJobs::remove(const std::string& node, const std::string& uid) {
  const auto found = uids_.find(node);
  if (found == uids_.end()) return;
  found->second.erase(uid);
  if (found->second.empty()) uids_.erase(found);
}

std::vector<std::string> PlacedJobs::on(const std::string& node) const {
  const auto found = uids_.find(node);
  if (found == uids_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

void Jobs::register_new(job::JobRecord& job) {
  job.order = next_order_++;
  names_.insert(job.name);
}

void Jobs::restore(const job::JobRecord& job) {
  names_.insert(job.name);
  next_order_ = std::max(next_order_, job.order + 1);
}

void Jobs::begin_creation(Creation creation) {
  const std::string uid = creation.job.record.uid;
  creating_.emplace(uid, std::move(creation));
}

Creation* Jobs::find_creation(const std::string& uid) {
  const auto found = creating_.find(uid);
  return found == creating_.end() ? nullptr : &found->second;
}

const Creation* Jobs::find_creation(const std::string& uid) const {
  const auto found = creating_.find(uid);
  return found == creating_.end() ? nullptr : &found->second;
}

Creation Jobs::end_creation(const std::string& uid) { return std::move(creating_.extract(uid).mapped()); }

LiveJob& Jobs::add(LiveJob job) {
  const std::string uid = job.record.uid;
  return live_.emplace(uid, std::move(job)).first->second;
}

LiveJob* Jobs::find(const std::string& uid) {
  const auto found = live_.find(uid);
  return found == live_.end() ? nullptr : &found->second;
}

const LiveJob* Jobs::find(const std::string& uid) const {
  const auto found = live_.find(uid);
  return found == live_.end() ? nullptr : &found->second;
}

void Jobs::end(const std::string& uid, JobViewPtr view) {
  over_[uid] = std::move(view);
  live_.erase(uid);
}

JobViewPtr Jobs::find_over(const std::string& uid) const {
  const auto found = over_.find(uid);
  return found == over_.end() ? nullptr : found->second;
}

void Jobs::remove(const JobView& view) {
  over_.erase(view.record->uid);
  names_.erase(view.record->name);
}

}  // namespace titan::core
