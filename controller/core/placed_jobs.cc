#include "controller/core/placed_jobs.h"

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

}  // namespace titan::core
