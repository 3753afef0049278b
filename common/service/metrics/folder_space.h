#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock/clock.h"
#include "common/base/sync/sync.h"
#include "common/service/metrics/metrics.h"
#include "prometheus/collectable.h"

namespace titan::metrics {

// Shows how full the file systems of some folders are: titan_folder_free_bytes and titan_folder_size_bytes, by folder
// and kind. Reading a folder on shared storage may block, so the page shows the newest readings and omits any older
// than a minute. A state folder that cannot be read shows 0 free bytes and its last size, so that a disk-full alert
// still fires. Thread-safe.
class FolderSpace : public prometheus::Collectable {
 public:
  // `labels` are added to every series.
  explicit FolderSpace(Labels labels = {}, const Clock& clock = system_clock())
      : labels_(std::move(labels)), clock_(clock) {}

  // Reads the folders, which replace all earlier ones of this kind ("state", "dump"). Blocks as long as the file
  // systems do.
  void look(const std::string& kind, const std::set<std::string>& folders);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Seen {
    double free = 0, size = 0;  // Bytes. `free` excludes the blocks reserved for root.
    absl::Duration at;          // Monotonic.
  };

  const Labels labels_;
  const Clock& clock_;
  mutable sync::Mutex mutex_;
  std::map<std::string, std::map<std::string, Seen>> seen_ TITAN_GUARDED_BY(mutex_);  // By kind, then folder.
  std::map<std::string, double> sizes_ TITAN_GUARDED_BY(mutex_);  // Last known size of each state folder, in bytes.
};

// Shows one folder on a local disk, read at each scrape.
class LocalFolderSpace : public prometheus::Collectable {
 public:
  LocalFolderSpace(std::string kind, std::string folder) : kind_(std::move(kind)), folder_(std::move(folder)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string kind_, folder_;
  mutable FolderSpace space_;
};

}  // namespace titan::metrics
