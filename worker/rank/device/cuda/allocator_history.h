#pragma once

#include <c10/core/Device.h>

#include "worker/rank/device/memory_snapshot.h"

namespace titan::device {

// The process's CUDA allocator keeps its last `most_events` events, with the scopes of who allocates; 0: none any more.
void record_allocator(size_t most_events, ScopesNow scopes);

// Of one device: what is kept, and its segments with their blocks. No names of scopes.
MemorySnapshot allocator_snapshot(c10::DeviceIndex device);

}  // namespace titan::device
