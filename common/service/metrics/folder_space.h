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

// How full the file systems of some folders are: titan_folder_free_bytes and titan_folder_size_bytes, by folder and
// what it is for. Folders on shared storage may keep whoever looks at them waiting, so the page shows what was seen
// last and nothing that is older than a minute. Of a state folder that is gone it shows no space at all: what watches
// for full disks must not go quiet just then. Thread-safe.
class FolderSpace : public prometheus::Collectable {
 public:
  // `labels` are on every series.
  explicit FolderSpace(Labels labels = {}, const Clock& clock = system_clock())
      : labels_(std::move(labels)), clock_(clock) {}

  // Looks at the folders, which are from now on all of this kind ("state", "dump"). May block as long as they do.
  void look(const std::string& kind, const std::set<std::string>& folders);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Seen {
    double free = 0, size = 0;  // Bytes; free: for those who are not root.
    absl::Duration at;          // Monotonic.
  };

  const Labels labels_;
  const Clock& clock_;
  mutable sync::Mutex mutex_;
  std::map<std::string, std::map<std::string, Seen>> seen_ TITAN_GUARDED_BY(mutex_);  // By kind and folder.
  std::map<std::string, double> sizes_ TITAN_GUARDED_BY(mutex_);  // Of state folders, as they were last.
};

// Shows one folder, of a local disk, as it is when somebody asks.
class OwnFolder : public prometheus::Collectable {
 public:
  OwnFolder(std::string kind, std::string folder) : kind_(std::move(kind)), folder_(std::move(folder)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string kind_, folder_;
  mutable FolderSpace space_;
};

}  // namespace titan::metrics
