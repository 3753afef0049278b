#pragma once

// A CPU allocator that keeps freed blocks for the next step and records its last events for memory snapshots.

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/base/sync/sync.h"
#include "worker/rank/device/memory_snapshot.h"

namespace titan::runtime {

// The last events of the CPU allocator and what it holds, for memory snapshots. Each block is a segment of one block,
// either used by a tensor or kept for the next one; the place of a freed large block is not a segment. Blocks allocated
// before begin() are unknown, and their frees are omitted. Thread-safe. The allocator must call freed() and returned()
// before another thread can get the memory.
class CpuHistory {
 public:
  // Clears the history and from now on keeps the last `max_events` (1 or more).
  void begin(size_t max_events, device::ScopesNow scopes);
  void end();
  bool records() const { return records_.load(std::memory_order_relaxed); }

  // A block of `block_bytes` serves a tensor of `bytes`. `fresh`: it was not kept for this size.
  void allocated(const void* data, size_t bytes, size_t block_bytes, bool fresh);
  void freed(const void* data, bool kept);  // Kept for another tensor of its size, or a block no longer.
  void returned(const void* data);          // A kept block is returned to malloc.
  void out_of_memory(size_t bytes);

  device::MemorySnapshot snapshot() const;  // Without the names of scopes.

 private:
  // Each stands for up to three events of the snapshot's format.
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
    int64_t bytes = -1;  // Bytes of the tensor; -1: none.
    int32_t scopes = 0;
  };

  void add(Event event) TITAN_REQUIRES(mutex_);
  static void put(const Event& event, std::vector<device::MemoryEvent>& events);

  std::atomic<bool> records_{false};
  mutable sync::Mutex mutex_;
  device::ScopesNow scopes_ TITAN_GUARDED_BY(mutex_);
  size_t max_events_ TITAN_GUARDED_BY(mutex_) = 1;
  size_t next_ TITAN_GUARDED_BY(mutex_) = 0;  // Index of the oldest event once the buffer is full.
  std::vector<Event> events_ TITAN_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Block> blocks_ TITAN_GUARDED_BY(mutex_);
};

struct CpuAllocatorStats {
  int64_t live_bytes = 0;    // In tensors, rounded up to blocks. Excludes blocks too small for the cache.
  int64_t cached_bytes = 0;  // Freed and kept: blocks in the lists, and places between or after large blocks.
  int64_t fresh_blocks = 0;  // Number of times that memory was requested, without blocks too small for the cache.
};

// A CPU allocator that keeps freed memory. Every step allocates the same sizes, so after a few steps it requests none.
// Blocks below 4 MiB wait in lists by size. Larger ones share a range of addresses (block_arena.h), so that the weights
// that an encoder gathers and the activations of the model take the same memory: in lists by size, a rank of Flux held
// 1.9 GiB more. malloc alone never settles: small blocks that stay lie between large ones, collectives end at varying
// times, freed neighbours merge and split differently each step, and a rank's resident set grows by percents over
// hundreds of steps.
class CachingCpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  CpuAllocatorStats counts() const;
  CpuHistory& history();  // History of the process. Records after begin().
};

// The single instance of the process. Deleters are plain functions and may run at exit, so it is never destroyed.
CachingCpuAllocator& cpu_memory();

// Makes all CPU tensors created from now on use cpu_memory().
void install_cpu_allocator();

}  // namespace titan::runtime
