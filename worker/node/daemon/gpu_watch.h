#pragma once

// Watches the node's GPUs in a separate thread and exports their state as metrics.

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock/clock.h"
#include "common/base/sync/sync.h"
#include "common/service/journal/line.h"
#include "common/service/metrics/metrics.h"
#include "prometheus/collectable.h"
#include "worker/node/daemon/gpu_reader.h"
#include "worker/node/daemon/serial_executor.h"

namespace titan::daemon {

// Metrics of the node's GPUs: the newest values, no values older than a minute, and their age. Empty before the first
// read. Thread-safe.
class GpuSeries : public prometheus::Collectable {
 public:
  explicit GpuSeries(metrics::Labels labels, const Clock& clock = system_clock())
      : labels_(std::move(labels)), clock_(clock) {}

  void begin();  // A read starts, which may hang in the driver.
  void show(std::vector<GpuStatus> seen);
  void fail(const std::string& why);     // The GPUs cannot be read now.
  void give_up(const std::string& why);  // The GPUs can never be read: the driver library is missing.

  // New journal lines; each is returned once.
  std::vector<journal::Line> news();

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Xids {
    double count = 0;
    std::optional<unsigned long long> last;
  };
  void report(journal::Level level, const char* event, std::string message) TITAN_REQUIRES(mutex_);

  const metrics::Labels labels_;
  const Clock& clock_;
  mutable sync::Mutex mutex_;
  // Time of the last successful read, or of the first attempt.
  std::optional<absl::Duration> since_ TITAN_GUARDED_BY(mutex_);
  std::vector<GpuStatus> seen_ TITAN_GUARDED_BY(mutex_);
  std::map<unsigned int, Xids> xids_ TITAN_GUARDED_BY(mutex_);  // By device, over this daemon's life.
  std::string failure_ TITAN_GUARDED_BY(mutex_);                // The reported failure.
  std::vector<journal::Line> news_ TITAN_GUARDED_BY(mutex_);
};

// Reads the node's GPUs in a separate thread. A driver that hangs blocks only that thread, and is not queried again
// until it has answered.
class GpuWatch {
 public:
  GpuWatch(std::shared_ptr<GpuSeries> series, const std::string& library, int devices);

  void look();

 private:
  // State of a read, which may outlive this object.
  struct Own {
    std::shared_ptr<GpuSeries> series;
    GpuReader reader;
    std::atomic<bool> busy = false;
    bool absent = false;  // The driver library is missing.
    void look();
  };

  const std::shared_ptr<Own> own_;
  SerialExecutor lane_{std::chrono::milliseconds(100)};
};

}  // namespace titan::daemon
