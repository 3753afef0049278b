#include "worker/rank/runtime/memory/cpu_history.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

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

void CpuHistory::begin(size_t most_events, device::ScopesNow scopes) {
  sync::Lock lock(mutex_);
  scopes_ = std::move(scopes);
  most_events_ = most_events;
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
  if (events_.size() < most_events_) {
    events_.push_back(event);
    return;
  }
  events_[next_] = event;
  next_ = (next_ + 1) % most_events_;
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
    case Kind::kFree:  // No stream waits for anything.
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

}  // namespace titan::runtime
