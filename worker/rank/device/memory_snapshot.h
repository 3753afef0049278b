#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace titan::device {

// What a device's allocator did and holds, as PyTorch's torch.cuda.memory._snapshot() says it.
enum class MemoryAction : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,  // Later than the request where another stream still used the memory.
  kSegmentAlloc,   // Taken from the driver, or from malloc.
  kSegmentFree,
  kSegmentMap,  // Of expandable segments.
  kSegmentUnmap,
  kSnapshot,
  kOutOfMemory,
};

struct MemoryEvent {
  MemoryAction action = MemoryAction::kAlloc;
  uint64_t address = 0;  // Of kOutOfMemory: the bytes that the device has free.
  int64_t bytes = 0;     // As asked for.
  int64_t stream = 0;
  int64_t time_us = 0;  // Since the epoch.
  int32_t scopes = 0;   // Index in MemorySnapshot::scopes.
};

struct MemoryBlock {
  enum class State { kAllocated, kAwaitingFree, kFree };
  int64_t bytes = 0;
  int64_t requested_bytes = 0;  // Below `bytes` by what was rounded up.
  State state = State::kFree;
  int32_t scopes = 0;
};

struct MemorySegment {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t stream = 0;
  bool large = false;
  bool expandable = false;
  std::vector<MemoryBlock> blocks;  // In order of address, without gaps.
  int32_t scopes = 0;
};

struct MemorySnapshot {
  int device = 0;
  std::vector<std::vector<std::string>> scopes;  // Stacks, innermost first; the first is that of nobody knows whom.
  std::vector<MemorySegment> segments;           // By address.
  std::vector<MemoryEvent> events;               // The oldest first.
  bool expandable_segments = false;              // The one of the allocator's settings that the figures depend on.
};

// The number of the scopes that the calling thread is in, for MemoryEvent::scopes. Called by every allocation.
using ScopesNow = std::function<int32_t()>;

// What PyTorch's memory viewer (https://pytorch.org/memory_viz, torch.cuda._memory_viz of 2.11) opens.
std::string to_pickle(const MemorySnapshot& snapshot);

}  // namespace titan::device
