#include "worker/rank/device/cuda/allocator_history.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <mutex>

namespace titan::device {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using Entry = allocator::TraceEntry;

struct ScopesOfEvent : c10::GatheredContext {
  explicit ScopesOfEvent(int32_t number) : number(number) {}
  const int32_t number;
};

// LibTorch's allocator is process-wide and calls a plain function.
class Asked {
 public:
  void set(ScopesNow scopes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    scopes_ = std::move(scopes);
  }
  int32_t now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return scopes_ ? scopes_() : 0;
  }

 private:
  std::mutex mutex_;
  ScopesNow scopes_;
};

Asked& asked() {
  static auto* instance = new Asked;
  return *instance;
}

std::shared_ptr<c10::GatheredContext> scopes_of_event() { return std::make_shared<ScopesOfEvent>(asked().now()); }

int32_t number_of(const std::shared_ptr<c10::GatheredContext>& context) {
  const auto* scopes = dynamic_cast<const ScopesOfEvent*>(context.get());
  return scopes == nullptr ? 0 : scopes->number;
}

MemoryAction action_of(Entry::Action action) {
  switch (action) {
    case Entry::ALLOC:
      return MemoryAction::kAlloc;
    case Entry::FREE_REQUESTED:
      return MemoryAction::kFreeRequested;
    case Entry::FREE_COMPLETED:
      return MemoryAction::kFreeCompleted;
    case Entry::SEGMENT_ALLOC:
      return MemoryAction::kSegmentAlloc;
    case Entry::SEGMENT_FREE:
      return MemoryAction::kSegmentFree;
    case Entry::SEGMENT_MAP:
      return MemoryAction::kSegmentMap;
    case Entry::SEGMENT_UNMAP:
      return MemoryAction::kSegmentUnmap;
    case Entry::SNAPSHOT:
      return MemoryAction::kSnapshot;
    case Entry::OOM:
      return MemoryAction::kOutOfMemory;
  }
  return MemoryAction::kSnapshot;
}

// In snapshots the time is in microseconds since the epoch: LibTorch converts it while taking them.
MemoryEvent event_of(const Entry& entry) {
  return {.action = action_of(entry.action_),
          .address = entry.addr_,
          .bytes = static_cast<int64_t>(entry.size_),
          .stream = reinterpret_cast<int64_t>(entry.stream_),
          .time_us = entry.time_.t_,
          .scopes = number_of(entry.context_)};
}

MemoryBlock block_of(const c10::CachingDeviceAllocator::BlockInfo& block) {
  using State = MemoryBlock::State;
  return {.bytes = static_cast<int64_t>(block.size),
          .requested_bytes = static_cast<int64_t>(block.requested_size),
          .state = block.allocated ? State::kAllocated
                   : block.active  ? State::kAwaitingFree
                                   : State::kFree,
          .scopes = number_of(block.context_when_allocated)};
}

MemorySegment segment_of(const c10::CachingDeviceAllocator::SegmentInfo& info) {
  MemorySegment segment{.address = info.address,
                        .bytes = static_cast<int64_t>(info.total_size),
                        .stream = reinterpret_cast<int64_t>(info.stream),
                        .large = info.is_large,
                        .expandable = info.is_expandable,
                        .blocks = {},
                        .scopes = number_of(info.context_when_allocated)};
  for (const auto& block : info.blocks) segment.blocks.push_back(block_of(block));
  return segment;
}

}  // namespace

void record_allocator(size_t max_events, ScopesNow scopes) {
  const bool on = max_events > 0;
  asked().set(std::move(scopes));
  // Scopes are recorded for allocations, in the history and for live blocks. A free is identified by its address.
  allocator::recordHistory(on, on ? &scopes_of_event : nullptr, on ? max_events : 1,
                           on ? allocator::RecordContext::ALLOC : allocator::RecordContext::NEVER,
                           /*clearHistory=*/true, /*skip_actions=*/{});
}

MemorySnapshot allocator_snapshot(c10::DeviceIndex device) {
  const allocator::SnapshotInfo info = allocator::snapshot();
  MemorySnapshot snapshot;
  snapshot.device = int{device};
  snapshot.expandable_segments = info.config_metadata.expandable_segments;
  for (const auto& segment : info.segments) {
    if (segment.device == device) snapshot.segments.push_back(segment_of(segment));
  }
  std::sort(snapshot.segments.begin(), snapshot.segments.end(),
            [](const MemorySegment& a, const MemorySegment& b) { return a.address < b.address; });
  if (static_cast<size_t>(device) >= info.device_traces.size()) return snapshot;
  for (const Entry& entry : info.device_traces[device]) snapshot.events.push_back(event_of(entry));
  return snapshot;
}

}  // namespace titan::device
