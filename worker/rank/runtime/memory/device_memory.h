#pragma once

#include <memory>

#include "worker/rank/device/device.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {

// The memory of an accelerator for the metrics, as its allocator counts it. Null for the CPU, whose figures are the
// process's own. `device` must outlive the monitor.
std::unique_ptr<MemoryMonitor> make_memory_monitor(device::Device& device);

}  // namespace titan::runtime
