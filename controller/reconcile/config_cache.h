#pragma once

// Caches parsed configurations of the jobs that were placed last, so that nothing is read or parsed while a Prepare is
// sent.

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "nlohmann/json.hpp"

namespace titan::reconcile {

class ConfigCache {
 public:
  using Config = std::shared_ptr<const nlohmann::json>;

  // `capacity` limits the bytes of all texts. A parsed configuration takes several times as much.
  explicit ConfigCache(size_t capacity = 4 << 20) : capacity_(capacity) {}

  Config find(const std::string& uid);  // nullptr: it is not cached.
  // Parses and caches the text. If the job is cached already, returns that configuration. Errors: DataLoss when the
  // text is not JSON; then nothing is cached.
  absl::StatusOr<Config> add(const std::string& uid, const std::string& text);

 private:
  struct Entry {
    std::string uid;
    Config config;
    size_t bytes = 0;
  };

  const size_t capacity_;
  sync::Mutex mutex_;
  std::list<Entry> entries_ TITAN_GUARDED_BY(mutex_);  // Most recently used first.
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_uid_ TITAN_GUARDED_BY(mutex_);
  size_t bytes_ TITAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace titan::reconcile
