#pragma once

// Watches the node's GPUs in a thread of its own, and shows what was seen as series of the metrics page.

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
#include "worker/node/daemon/lane.h"

namespace titan::daemon {

// What the page says of this node's GPUs: what was seen last, nothing that is older than a minute, and how old it is.
// Nothing before anybody has looked. Thread-safe.
class GpuSeries : public prometheus::Collectable {
 public:
  explicit GpuSeries(metrics::Labels labels, const Clock& clock = system_clock())
      : labels_(std::move(labels)), clock_(clock) {}

  void begin();  // Somebody looks now, and may wait for the driver for ever.
  void show(std::vector<GpuSeen> seen);
  void fail(const std::string& why);     // Nothing can be seen now.
  void give_up(const std::string& why);  // Nor ever: there is no such driver.

  // For the journal, each once.
  std::vector<journal::Line> news();

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Xids {
    double count = 0;
    std::optional<unsigned long long> last;
  };
  void tell(journal::Level level, const char* event, std::string message) TITAN_REQUIRES(mutex_);

  const metrics::Labels labels_;
  const Clock& clock_;
  mutable sync::Mutex mutex_;
  std::optional<absl::Duration> since_ TITAN_GUARDED_BY(mutex_);  // When it was seen last, or first looked at.
  std::vector<GpuSeen> seen_ TITAN_GUARDED_BY(mutex_);
  std::map<unsigned int, Xids> xids_ TITAN_GUARDED_BY(mutex_);  // By device, of this daemon's life.
  std::string failure_ TITAN_GUARDED_BY(mutex_);                // As it was told.
  std::vector<journal::Line> news_ TITAN_GUARDED_BY(mutex_);
};

// Looks at the node's GPUs in a thread of its own: a driver that does not answer keeps nobody waiting but that thread,
// and is not asked again until it has answered.
class GpuWatch {
 public:
  GpuWatch(std::shared_ptr<GpuSeries> series, const std::string& library, int devices);

  void look();

 private:
  // What a look uses, and keeps when it outlives this object.
  struct Own {
    std::shared_ptr<GpuSeries> series;
    GpuReader reader;
    std::atomic<bool> busy = false;
    bool absent = false;  // There is no library.
    void look();
  };

  const std::shared_ptr<Own> own_;
  Lane lane_{std::chrono::milliseconds(100)};
};

}  // namespace titan::daemon
