#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "worker/node/daemon/gpu_series.h"
#include "worker/node/daemon/lane.h"

namespace titan::daemon {

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
