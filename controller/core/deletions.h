#pragma once

// Tracks deletions that are on their way to the store and remembers deleted jobs: a node that was away may come back
// with their ranks, and a client may repeat the request that created them.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "controller/job/record.h"

namespace titan::core {

class Deletions {
 public:
  void begin(const std::string& uid) { under_way_.insert(uid); }
  void end(const std::string& uid) { under_way_.erase(uid); }
  bool is_under_way(const std::string& uid) const { return under_way_.contains(uid); }

  // Does nothing if the job is remembered already. `tombstone.time_ns` must be set.
  void remember(const std::string& uid, job::Tombstone tombstone);
  job::Tombstone forget(const std::string& uid);  // The job must be remembered.
  const job::Tombstone* find(const std::string& uid) const;
  bool contains(const std::string& uid) const { return tombstones_.contains(uid); }
  // Returns the uid of the job that was deleted first, if it was deleted at `time_ns` or before.
  std::optional<std::string> oldest_until(int64_t time_ns) const;

 private:
  absl::flat_hash_set<std::string> under_way_;
  absl::flat_hash_map<std::string, job::Tombstone> tombstones_;
  std::set<std::pair<int64_t, std::string>> by_age_;  // Deletion time and uid of every entry of tombstones_.
};

}  // namespace titan::core
