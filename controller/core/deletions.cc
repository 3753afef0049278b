#include "controller/core/deletions.h"

namespace titan::core {

void Deletions::remember(const std::string& uid, job::Tombstone tombstone) {
  const auto [at, is_new] = tombstones_.try_emplace(uid, std::move(tombstone));
  if (is_new) by_age_.emplace(at->second.time_ns, uid);
}

job::Tombstone Deletions::forget(const std::string& uid) {
  const auto found = tombstones_.find(uid);
  job::Tombstone tombstone = std::move(found->second);
  by_age_.erase({tombstone.time_ns, uid});
  tombstones_.erase(found);
  return tombstone;
}

const job::Tombstone* Deletions::find(const std::string& uid) const {
  const auto found = tombstones_.find(uid);
  return found == tombstones_.end() ? nullptr : &found->second;
}

std::optional<std::string> Deletions::oldest_until(int64_t time_ns) const {
  if (by_age_.empty() || by_age_.begin()->first > time_ns) return std::nullopt;
  return by_age_.begin()->second;
}

}  // namespace titan::core
