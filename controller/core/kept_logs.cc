#include "controller/core/kept_logs.h"

namespace titan::core {

void KeptLogs::add(const AttemptKey& key, int64_t bytes) {
  if (bytes <= 0) return;
  attempts_[key].bytes += bytes;
  bytes_ += bytes;
}

void KeptLogs::may_go(const AttemptKey& key, int64_t end_time_ns) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end() || found->second.end_time_ns) return;
  found->second.end_time_ns = end_time_ns;
  by_age_.emplace(end_time_ns, key);
}

int64_t KeptLogs::erase(const AttemptKey& key) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) return 0;
  const Of of = found->second;
  if (of.end_time_ns) by_age_.erase({*of.end_time_ns, key});
  attempts_.erase(found);
  bytes_ -= of.bytes;
  return of.bytes;
}

void KeptLogs::erase_job(const std::string& uid) {
  for (auto at = attempts_.lower_bound({uid, 0}); at != attempts_.end() && at->first.first == uid;) {
    const AttemptKey key = (at++)->first;
    erase(key);
  }
}

std::optional<AttemptKey> KeptLogs::oldest() const {
  if (by_age_.empty()) return std::nullopt;
  return by_age_.begin()->second;
}

}  // namespace titan::core
