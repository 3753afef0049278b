#include "worker/rank/runtime/memory/cpu_memory.h"

#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>

#include "worker/rank/runtime/memory/block_arena.h"

namespace titan::runtime {
namespace {

using device::MemoryAction;

uint64_t address_of(const void* data) { return reinterpret_cast<uint64_t>(data); }

int64_t now_us() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
}

uint64_t free_bytes_of_machine() {
  const int64_t pages = sysconf(_SC_AVPHYS_PAGES);
  return pages < 0 ? 0 : static_cast<uint64_t>(pages) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void CpuHistory::begin(size_t max_events, device::ScopesNow scopes) {
  sync::Lock lock(mutex_);
  scopes_ = std::move(scopes);
  max_events_ = max_events;
  next_ = 0;
  events_.clear();
  blocks_.clear();
  records_ = true;
}

void CpuHistory::end() {
  sync::Lock lock(mutex_);
  records_ = false;
  scopes_ = nullptr;
  events_ = {};
  blocks_ = {};
}

void CpuHistory::allocated(const void* data, size_t bytes, size_t block_bytes, bool fresh) {
  sync::Lock lock(mutex_);
  if (!records()) return;
  const int32_t scopes = scopes_();
  blocks_[address_of(data)] = {static_cast<int64_t>(block_bytes), static_cast<int64_t>(bytes), scopes};
  add({.address = address_of(data),
       .bytes = static_cast<int64_t>(bytes),
       .block_bytes = fresh ? static_cast<int64_t>(block_bytes) : 0,
       .scopes = scopes,
       .kind = Kind::kAllocate});
}

void CpuHistory::freed(const void* data, bool kept) {
  sync::Lock lock(mutex_);
  if (!records()) return;
  const auto found = blocks_.find(address_of(data));
  if (found == blocks_.end()) return;
  Block& block = found->second;
  add({.address = address_of(data),
       .bytes = block.bytes,
       .block_bytes = kept ? 0 : block.block_bytes,
       .scopes = block.scopes,
       .kind = Kind::kFree});
  block.bytes = -1;
  if (!kept) blocks_.erase(found);
}

void CpuHistory::returned(const void* data) {
  sync::Lock lock(mutex_);
  if (!records()) return;
  const auto found = blocks_.find(address_of(data));
  if (found == blocks_.end()) return;
  add({.address = address_of(data), .block_bytes = found->second.block_bytes, .kind = Kind::kReturn});
  blocks_.erase(found);
}

void CpuHistory::out_of_memory(size_t bytes) {
  sync::Lock lock(mutex_);
  if (!records()) return;
  add({.address = free_bytes_of_machine(),
       .bytes = static_cast<int64_t>(bytes),
       .scopes = scopes_(),
       .kind = Kind::kOutOfMemory});
}

void CpuHistory::add(Event event) {
  event.time_us = now_us();
  if (events_.size() < max_events_) {
    events_.push_back(event);
    return;
  }
  events_[next_] = event;
  next_ = (next_ + 1) % max_events_;
}

void CpuHistory::put(const Event& event, std::vector<device::MemoryEvent>& events) {
  const auto say = [&](MemoryAction action, int64_t bytes) {
    events.push_back({.action = action,
                      .address = event.address,
                      .bytes = bytes,
                      .stream = 0,
                      .time_us = event.time_us,
                      .scopes = event.scopes});
  };
  switch (event.kind) {
    case Kind::kAllocate:
      if (event.block_bytes > 0) say(MemoryAction::kSegmentAlloc, event.block_bytes);
      say(MemoryAction::kAlloc, event.bytes);
      break;
    case Kind::kFree:  // No stream has to be waited for.
      say(MemoryAction::kFreeRequested, event.bytes);
      say(MemoryAction::kFreeCompleted, event.bytes);
      if (event.block_bytes > 0) say(MemoryAction::kSegmentFree, event.block_bytes);
      break;
    case Kind::kReturn:
      say(MemoryAction::kSegmentFree, event.block_bytes);
      break;
    case Kind::kOutOfMemory:
      say(MemoryAction::kOutOfMemory, event.bytes);
      break;
  }
}

device::MemorySnapshot CpuHistory::snapshot() const {
  device::MemorySnapshot snapshot;
  sync::Lock lock(mutex_);
  for (size_t i = 0; i < events_.size(); ++i) put(events_[(next_ + i) % events_.size()], snapshot.events);
  for (const auto& [address, block] : blocks_) {
    const bool used = block.bytes >= 0;
    device::MemoryBlock all{.bytes = block.block_bytes,
                            .requested_bytes = used ? block.bytes : 0,
                            .state = used ? device::MemoryBlock::State::kAllocated : device::MemoryBlock::State::kFree,
                            .scopes = block.scopes};
    snapshot.segments.push_back({.address = address,
                                 .bytes = block.block_bytes,
                                 .stream = 0,
                                 .large = block.block_bytes > (1 << 20),
                                 .expandable = false,
                                 .blocks = {all},
                                 .scopes = block.scopes});
  }
  std::sort(snapshot.segments.begin(), snapshot.segments.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  return snapshot;
}

namespace {

constexpr size_t kHeader = 64;          // Before the data: the block's bytes without it. Keeps LibTorch's alignment.
constexpr size_t kSmallest = 32 << 10;  // Below this size malloc's own bins do the same.
constexpr size_t kLarge = 4 << 20;      // From this size on a block lies in the range of addresses for large blocks.

constexpr int64_t kIdleAllowed = 256 << 20;  // Bytes that lists may hold even if little is used.

// Eight classes between powers of two: at most an eighth is wasted.
size_t size_class(size_t bytes) {
  const size_t grain = std::bit_floor(bytes) / 8;
  return (bytes + grain - 1) / grain * grain;
}

size_t aligned(size_t bytes) { return (bytes + kHeader - 1) / kHeader * kHeader; }

CpuHistory& history() {
  static auto* instance = new CpuHistory;
  return *instance;
}

void* data_of(void* block) { return static_cast<char*>(block) + kHeader; }

void give_back(void* block) {
  if (history().records()) history().returned(data_of(block));
  c10::free_cpu(block);
}

// Allocates with malloc, including space for the header.
void* new_block(size_t bytes) {
  try {
    return c10::alloc_cpu(kHeader + bytes);
  } catch (...) {
    if (history().records()) history().out_of_memory(bytes);
    throw;
  }
}

// Large blocks and their headers, in addresses for as much as the machine's memory. Addresses cost nothing until they
// are written.
class LargeBlocks {
 public:
  LargeBlocks() : arena_(reserve()) {}

  // Without addresses, which a process may not have, take() always returns null.
  bool exist() const { return begin_ != nullptr; }
  void* take(size_t bytes) {
    const std::optional<size_t> offset = arena_.take(kHeader + bytes);
    return offset ? begin_ + *offset : nullptr;
  }
  void put(void* block, size_t bytes) {
    arena_.put(static_cast<size_t>(static_cast<char*>(block) - begin_), kHeader + bytes);
  }

  bool has(const void* block) const { return block >= begin_ && block < end_; }
  size_t most_bytes() const { return arena_.most_bytes(); }
  size_t idle_bytes() const { return arena_.most_bytes() - arena_.used_bytes(); }

 private:
  // Returns the number of bytes. With `ulimit -v` other allocations need the addresses.
  size_t reserve() {
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return 0;
    const size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return 0;
    madvise(range, bytes, MADV_HUGEPAGE);  // Without kernel support nothing changes.
    begin_ = static_cast<char*>(range);
    end_ = begin_ + bytes;
    return bytes;
  }

  char *begin_ = nullptr, *end_ = nullptr;
  BlockArena arena_;
};

// Freed blocks. A large one becomes part of a place for blocks of any size, a smaller one waits in the list of its
// size.
class FreeBlocks {
 public:
  // Returns the bytes of a block for a tensor of this many, without the header.
  size_t block_bytes(size_t bytes) const {
    return bytes >= kLarge && large_.exist() ? aligned(bytes) : size_class(bytes);
  }

  // Returns a block of block_bytes(), or null if malloc must provide it.
  void* take(size_t bytes) {
    std::vector<void*> unused;
    {
      sync::Lock lock(mutex_);
      counts_.live_bytes += static_cast<int64_t>(bytes);
      void* block = bytes < kLarge ? nullptr : take_large(bytes);
      if (block == nullptr) block = take_listed(bytes);
      if (block != nullptr) return block;
      ++counts_.fresh_blocks;
      // More is idle than used, and nothing fits: other sizes are needed now (validation, a checkpoint).
      if (counts_.cached_bytes > std::max(counts_.live_bytes, kIdleAllowed)) unused = empty();
    }
    for (void* block : unused) give_back(block);
    return nullptr;
  }

  void put(void* block, size_t bytes) {
    sync::Lock lock(mutex_);
    counts_.live_bytes -= static_cast<int64_t>(bytes);
    if (large_.has(block)) return large_.put(block, bytes);
    counts_.cached_bytes += static_cast<int64_t>(bytes);
    free_[bytes].push_back(block);
  }

  // Returns whether the block becomes part of a place for blocks of any size when it is freed.
  bool is_large(const void* block) const { return large_.has(block); }

  CpuAllocatorStats counts() const {
    sync::Lock lock(mutex_);
    CpuAllocatorStats all = counts_;
    all.cached_bytes += static_cast<int64_t>(large_.idle_bytes());
    return all;
  }

 private:
  void* take_listed(size_t bytes) TITAN_REQUIRES(mutex_) {
    std::vector<void*>& list = free_[bytes];
    if (list.empty()) return nullptr;
    void* block = list.back();
    list.pop_back();
    counts_.cached_bytes -= static_cast<int64_t>(bytes);
    return block;
  }
  void* take_large(size_t bytes) TITAN_REQUIRES(mutex_) {
    const size_t before = large_.most_bytes();
    void* const block = large_.take(bytes);
    if (large_.most_bytes() > before) ++counts_.fresh_blocks;
    return block;
  }

  std::vector<void*> empty() TITAN_REQUIRES(mutex_) {
    std::vector<void*> all;
    for (auto& [bytes, list] : free_) {
      all.insert(all.end(), list.begin(), list.end());
      list.clear();
    }
    counts_.cached_bytes = 0;
    return all;
  }

  mutable sync::Mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> free_ TITAN_GUARDED_BY(mutex_);
  LargeBlocks large_;
  CpuAllocatorStats counts_ TITAN_GUARDED_BY(mutex_);  // cached_bytes: those of the lists.
};

FreeBlocks& free_blocks() {
  static auto* instance = new FreeBlocks;
  return *instance;
}

size_t& bytes_of(void* block) { return *static_cast<size_t*>(block); }  // 0: too small to be kept.

void release(void* data) {
  if (data == nullptr) return;
  void* block = static_cast<char*>(data) - kHeader;
  const size_t bytes = bytes_of(block);
  if (history().records()) history().freed(data, /*kept=*/bytes != 0 && !free_blocks().is_large(block));
  if (bytes != 0) {
    free_blocks().put(block, bytes);
  } else {
    c10::free_cpu(block);
  }
}

}  // namespace

c10::DataPtr CachingCpuAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
  const size_t kept = bytes < kSmallest ? 0 : free_blocks().block_bytes(bytes);
  void* block = kept == 0 ? nullptr : free_blocks().take(kept);
  const bool fresh = block == nullptr;
  const size_t block_bytes = kept == 0 ? bytes : kept;
  if (fresh) block = new_block(block_bytes);
  bytes_of(block) = kept;
  void* data = data_of(block);
  if (history().records()) {
    history().allocated(data, bytes, block_bytes, fresh || free_blocks().is_large(block));
  }
  return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr CachingCpuAllocator::raw_deleter() const { return &release; }

void CachingCpuAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  default_copy_data(to, from, bytes);
}

CpuAllocatorStats CachingCpuAllocator::counts() const { return free_blocks().counts(); }

CpuHistory& CachingCpuAllocator::history() { return runtime::history(); }

CachingCpuAllocator& cpu_memory() {
  static auto* instance = new CachingCpuAllocator;
  return *instance;
}

void install_cpu_allocator() { c10::SetAllocator(c10::DeviceType::CPU, &cpu_memory(), /*priority=*/1); }

}  // namespace titan::runtime
