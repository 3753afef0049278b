#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace titan::device {

// Events and state of a device's allocator, with the meanings that PyTorch's torch.cuda.memory._snapshot() gives them.
enum class MemoryAction : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,  // Later than the request if another stream still used the memory.
  kSegmentAlloc,   // Taken from the driver or from malloc.
  kSegmentFree,
  kSegmentMap,  // Expandable segments only.
  kSegmentUnmap,
  kSnapshot,
  kOutOfMemory,
};

struct MemoryEvent {
  MemoryAction action = MemoryAction::kAlloc;
  uint64_t address = 0;  // For kOutOfMemory: the device's free bytes.
  int64_t bytes = 0;     // The requested size.
  int64_t stream = 0;
  int64_t time_us = 0;  // Since the epoch.
  int32_t scopes = 0;   // Index in MemorySnapshot::scopes.
};

struct MemoryBlock {
  enum class State { kAllocated, kAwaitingFree, kFree };
  int64_t bytes = 0;
  int64_t requested_bytes = 0;  // `bytes` is rounded up from it.
  State state = State::kFree;
  int32_t scopes = 0;
};

struct MemorySegment {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t stream = 0;
  bool large = false;
  bool expandable = false;
  std::vector<MemoryBlock> blocks;  // In address order, without gaps.
  int32_t scopes = 0;
};

struct MemorySnapshot {
  int device = 0;
  std::vector<std::vector<std::string>> scopes;  // Stacks, innermost first. The first one is for unknown scopes.
  std::vector<MemorySegment> segments;           // By address.
  std::vector<MemoryEvent> events;               // The oldest first.
  bool expandable_segments = false;              // The only allocator setting that the numbers depend on.
};

// Returns the number of the scopes that the calling thread is in, for MemoryEvent::scopes. Called for every allocation.
using ScopesNow = std::function<int32_t()>;

// Returns the snapshot in the format that PyTorch's memory viewer opens (https://pytorch.org/memory_viz,
// torch.cuda._memory_viz of 2.11).
std::string to_pickle(const MemorySnapshot& snapshot);

}  // namespace titan::device
