#pragma once

// A device's allocator reports its peak for the metrics here, and its last events for memory snapshots.

#include <cstddef>
#include <memory>

#include "worker/rank/device/device.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {

// The memory of an accelerator for the metrics, as its allocator counts it. Null for the CPU, whose figures are the
// process's own. `device` must outlive the monitor.
std::unique_ptr<MemoryMonitor> make_memory_monitor(device::Device& device);

// The device's allocator keeps its last events while one lives; on the CPU that is the allocator of the process
// (cpu_memory.h), whose tensors are those of all its ranks. One at a time.
class MemoryHistory {
 public:
  // `device` must outlive it.
  MemoryHistory(device::Device& device, size_t most_events);
  ~MemoryHistory();
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;

  device::MemorySnapshot snapshot() const;

 private:
  device::Device& device_;
  device::ScopeTable scopes_;
};

}  // namespace titan::runtime
