#pragma once

#include <cstddef>

#include "worker/rank/device/device.h"
#include "worker/rank/device/scope_names.h"

namespace titan::runtime {

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
