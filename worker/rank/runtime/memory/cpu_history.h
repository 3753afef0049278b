#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/base/sync/sync.h"
#include "worker/rank/device/memory_snapshot.h"

namespace titan::runtime {

// The last events of the CPU's allocator and what it holds, for memory snapshots. Each block of malloc's is a segment
// of one block: used by a tensor, or kept for the next one. Blocks from before the beginning are not known, and their
// ends are left out. Thread-safe; whoever allocates calls what is below in the order that the memory itself changes
// hands: freed() and returned() before anybody else can get it.
class CpuHistory {
 public:
  // Forgets everything and keeps the last `most_events` (1 or more) from now on.
  void begin(size_t most_events, device::ScopesNow scopes);
  void end();
  bool records() const { return records_.load(std::memory_order_relaxed); }

  // A block of `block_bytes`, from malloc just now when `fresh`, serves a tensor of `bytes`.
  void allocated(const void* data, size_t bytes, size_t block_bytes, bool fresh);
  void freed(const void* data, bool kept);  // Kept for another tensor, or given back at once.
  void returned(const void* data);          // It was kept, and goes back to malloc.
  void out_of_memory(size_t bytes);

  device::MemorySnapshot snapshot() const;  // Without the names of scopes.

 private:
  // Of two or three of the format's events.
  enum class Kind : uint8_t { kAllocate, kFree, kReturn, kOutOfMemory };
  struct Event {
    uint64_t address = 0;
    int64_t bytes = 0;
    int64_t block_bytes = 0;  // 0: no segment begins or ends with it.
    int64_t time_us = 0;
    int32_t scopes = 0;
    Kind kind = Kind::kAllocate;
  };
  struct Block {
    int64_t block_bytes = 0;
    int64_t bytes = -1;  // Of the tensor; -1: none.
    int32_t scopes = 0;
  };

  void add(Event event) TITAN_REQUIRES(mutex_);
  static void put(const Event& event, std::vector<device::MemoryEvent>& events);

  std::atomic<bool> records_{false};
  mutable sync::Mutex mutex_;
  device::ScopesNow scopes_ TITAN_GUARDED_BY(mutex_);
  size_t most_events_ TITAN_GUARDED_BY(mutex_) = 1;
  size_t next_ TITAN_GUARDED_BY(mutex_) = 0;  // Where the oldest event is, once all places are taken.
  std::vector<Event> events_ TITAN_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Block> blocks_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::runtime
