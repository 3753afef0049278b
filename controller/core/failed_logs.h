#pragma once

// Accounts for the ends of failed ranks' logs in the store: which attempts have some, how many bytes, and which
// attempts are the oldest. This is enough to enforce a limit over all jobs without reading any log.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "controller/core/stray.h"

namespace titan::core {

class KeptLogs {
 public:
  void add(const AttemptKey& key, int64_t bytes);
  // Call when the attempt has ended. From then on oldest() may return it.
  void mark_ended(const AttemptKey& key, int64_t end_time_ns);
  int64_t erase(const AttemptKey& key);  // Returns the bytes that the attempt had.
  void erase_job(const std::string& uid);

  int64_t bytes() const { return bytes_; }
  std::optional<AttemptKey> oldest() const;  // The attempt that ended first. Nothing if no ended attempt has logs.

 private:
  struct Entry {
    int64_t bytes = 0;
    std::optional<int64_t> end_time_ns;
  };
  std::map<AttemptKey, Entry> attempts_;
  std::set<std::pair<int64_t, AttemptKey>> by_age_;
  int64_t bytes_ = 0;
};

}  // namespace titan::core
