#pragma once

#include <c10/core/Device.h>

#include "worker/rank/device/memory_snapshot.h"

namespace titan::device {

// From now on the process's CUDA allocator keeps its last `max_events` events, with the scopes of the allocating
// thread. 0 stops the recording.
void record_allocator(size_t max_events, ScopesNow scopes);

// Returns the events and segments of one device, without names of scopes.
MemorySnapshot allocator_snapshot(c10::DeviceIndex device);

}  // namespace titan::device
