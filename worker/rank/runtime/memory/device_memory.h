#pragma once

// Reports a device allocator's peak for metrics and its last events for memory snapshots.

#include <cstddef>
#include <memory>

#include "worker/rank/device/device.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {

// Returns the memory monitor of an accelerator, which reads the allocator's counts, or null for the CPU, whose figures
// are the process's. `device` must outlive the monitor.
std::unique_ptr<MemoryMonitor> make_memory_monitor(device::Device& device);

// Makes the device's allocator keep its last events while this lives. On the CPU this is the allocator of the process
// (cpu_memory.h), with the tensors of all its ranks. Only one may exist at a time.
class MemoryHistory {
 public:
  // `device` must outlive this.
  MemoryHistory(device::Device& device, size_t max_events);
  ~MemoryHistory();
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;

  device::MemorySnapshot snapshot() const;

 private:
  device::Device& device_;
  device::ScopeTable scopes_;
};

}  // namespace titan::runtime
