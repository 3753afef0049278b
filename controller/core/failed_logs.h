#pragma once

// Keeps the ends of failed ranks' logs in the store, within a limit over all jobs.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "controller/core/stray.h"

namespace titan::core {

// Which attempts have ends of failed ranks' logs in the store, how many bytes, and which are the oldest: what a limit
// over all jobs needs to know without reading any.

class KeptLogs {
 public:
  void add(const AttemptKey& key, int64_t bytes);
  // Its attempt has ended: it may be dropped from now on.
  void may_go(const AttemptKey& key, int64_t end_time_ns);
  int64_t erase(const AttemptKey& key);  // What it had.
  void erase_job(const std::string& uid);

  int64_t bytes() const { return bytes_; }
  std::optional<AttemptKey> oldest() const;  // Of those that may go.

 private:
  struct Of {
    int64_t bytes = 0;
    std::optional<int64_t> end_time_ns;
  };
  std::map<AttemptKey, Of> attempts_;
  std::set<std::pair<int64_t, AttemptKey>> by_age_;
  int64_t bytes_ = 0;
};

}  // namespace titan::core
