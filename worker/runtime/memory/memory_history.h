#pragma once

#include <cstddef>

#include "worker/comm/device.h"
#include "worker/comm/scope_names.h"

namespace titan::runtime {

// The device's allocator keeps its last events while one lives; on the CPU that is the allocator of the process
// (cpu_memory.h), whose tensors are those of all its ranks. One at a time.
class MemoryHistory {
 public:
  // `device` must outlive it.
  MemoryHistory(comm::Device& device, size_t most_events);
  ~MemoryHistory();
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;

  comm::MemorySnapshot snapshot() const;

 private:
  comm::Device& device_;
  comm::ScopeTable scopes_;
};

}  // namespace titan::runtime
