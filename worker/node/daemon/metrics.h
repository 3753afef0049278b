#pragma once

// The daemon's metrics, and the measurement of free space in its folders on other threads.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "common/service/metrics/folder_space.h"
#include "common/service/metrics/metrics.h"
#include "worker/node/daemon/gpu_watch.h"
#include "worker/node/daemon/serial_executor.h"

namespace titan::daemon {

// The /metrics page of this worker.
class WorkerMetrics {
 public:
  explicit WorkerMetrics(const std::string& node);

  // Serves http://ADDRESS/metrics. Returns the port, which the system chooses if the address has port 0.
  absl::StatusOr<int> serve(const std::string& address) { return metrics_.serve(address); }

  // Totals over the attempts of this daemon's life; they never decrease.
  void set_log_bytes_dropped(int64_t bytes) { raise(log_dropped_, bytes); }
  void set_memory_kills(int64_t ranks) { raise(memory_kills_, ranks); }
  void set_beats(int64_t count) { raise(beats_, count); }
  void set_events(int64_t count) { raise(events_, count); }
  void set_sessions(int64_t count) { raise(sessions_, count); }
  void set_shims_lost(int64_t count) { raise(shims_lost_, count); }

  // Sets the number of ranks that ran out of memory, by job and attempt, for attempts that the controller has not
  // forgotten.
  void set_memory_kills_of(std::map<std::pair<std::string, int>, int> kills) { kills_->set(std::move(kills)); }

  // Returns the measurement of free space in the folders of this node.
  const std::shared_ptr<titan::metrics::FolderSpace>& folders() const { return folders_; }
  // Adds a gauge that is computed at each scrape, with this node's labels.
  void add_callback_gauge(const std::string& name, const std::string& help, std::function<std::optional<double>()> ask);
  // Returns the metrics of the node's GPUs.
  const std::shared_ptr<GpuSeries>& gpus() const { return gpus_; }

 private:
  // One series per attempt with such ranks.
  class MemoryKills : public prometheus::Collectable {
   public:
    explicit MemoryKills(titan::metrics::Labels labels) : labels_(std::move(labels)) {}
    void set(std::map<std::pair<std::string, int>, int> kills);
    std::vector<prometheus::MetricFamily> Collect() const override;

   private:
    const titan::metrics::Labels labels_;
    mutable sync::Mutex mutex_;
    std::map<std::pair<std::string, int>, int> kills_ TITAN_GUARDED_BY(mutex_);
  };

  static void raise(prometheus::Counter& counter, int64_t total);

  titan::metrics::Metrics metrics_;
  const titan::metrics::Labels labels_;
  const std::shared_ptr<MemoryKills> kills_;
  const std::shared_ptr<titan::metrics::FolderSpace> folders_;
  const std::shared_ptr<GpuSeries> gpus_;
  prometheus::Counter &log_dropped_, &memory_kills_, &beats_, &events_, &sessions_, &shims_lost_;

 public:
  prometheus::Gauge& connected;
  prometheus::Gauge& ranks;
  prometheus::Gauge& attempts;
  prometheus::Gauge& state_folder_usable;
  prometheus::Gauge& devices;
  prometheus::Gauge& devices_used;
  prometheus::Gauge& controller_age;  // Seconds.
};

// Measures free space in folders, in one thread per kind of folder: hanging storage blocks only folders of the same
// kind.
class FolderWatch {
 public:
  explicit FolderWatch(std::shared_ptr<metrics::FolderSpace> space) : space_(std::move(space)) {}

  // The state folder is on a local disk; dump folders may be on any storage.
  void look(const std::string& state, const std::set<std::string>& dumps);

 private:
  struct Look {
    SerialExecutor lane{std::chrono::milliseconds(100)};
    std::shared_ptr<std::atomic<bool>> busy = std::make_shared<std::atomic<bool>>(false);
  };
  void look(Look& look, const std::string& kind, const std::set<std::string>& folders);

  const std::shared_ptr<metrics::FolderSpace> space_;
  Look state_, dumps_;
};

}  // namespace titan::daemon
