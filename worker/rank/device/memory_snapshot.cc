#include "worker/rank/device/memory_snapshot.h"

#include <map>

#include "worker/rank/device/pickle_writer.h"

namespace titan::device {
namespace {

// Each stack once: events and blocks name it.
class Stacks {
 public:
  Stacks(const std::vector<std::vector<std::string>>& stacks, PickleWriter& out) : stacks_(stacks), out_(out) {
    places_.resize(stacks.size(), -1);
  }

  // One list of frames.
  void put(int32_t stack) {
    const auto index = static_cast<size_t>(stack) < stacks_.size() ? static_cast<size_t>(stack) : 0;
    if (index < places_.size() && places_[index] >= 0) return out_.recall(places_[index]);
    out_.list();
    if (index >= stacks_.size()) return;
    for (const std::string& name : stacks_[index]) {
      put_frame(name);
      out_.append();
    }
    places_[index] = out_.remember();
  }

 private:
  void put_frame(const std::string& name) {
    if (const auto found = frames_.find(name); found != frames_.end()) return out_.recall(found->second);
    out_.dict();
    out_.field("filename", "titan");
    out_.field("line", int64_t{0});
    out_.field("name", name);
    frames_.emplace(name, out_.remember());
  }

  const std::vector<std::vector<std::string>>& stacks_;
  PickleWriter& out_;
  std::vector<int> places_;
  std::map<std::string, int> frames_;
};

const char* name_of(MemoryAction action) {
  switch (action) {
    case MemoryAction::kAlloc:
      return "alloc";
    case MemoryAction::kFreeRequested:
      return "free_requested";
    case MemoryAction::kFreeCompleted:
      return "free_completed";
    case MemoryAction::kSegmentAlloc:
      return "segment_alloc";
    case MemoryAction::kSegmentFree:
      return "segment_free";
    case MemoryAction::kSegmentMap:
      return "segment_map";
    case MemoryAction::kSegmentUnmap:
      return "segment_unmap";
    case MemoryAction::kSnapshot:
      return "snapshot";
    case MemoryAction::kOutOfMemory:
      return "oom";
  }
  return "";
}

const char* name_of(MemoryBlock::State state) {
  switch (state) {
    case MemoryBlock::State::kAllocated:
      return "active_allocated";
    case MemoryBlock::State::kAwaitingFree:
      return "active_pending_free";
    case MemoryBlock::State::kFree:
      return "inactive";
  }
  return "";
}

void put_blocks(const MemorySegment& segment, Stacks& stacks, PickleWriter& out) {
  out.list();
  auto address = static_cast<int64_t>(segment.address);
  for (const MemoryBlock& block : segment.blocks) {
    out.dict();
    out.field("address", address);
    out.field("size", block.bytes);
    out.field("requested_size", block.requested_bytes);
    out.field("state", name_of(block.state));
    out.field("frames", [&] { stacks.put(block.scopes); });
    out.append();
    address += block.bytes;
  }
}

void put_segment(const MemorySegment& segment, int device, Stacks& stacks, PickleWriter& out) {
  int64_t allocated = 0, active = 0, requested = 0;
  for (const MemoryBlock& block : segment.blocks) {
    if (block.state == MemoryBlock::State::kFree) continue;
    active += block.bytes;
    requested += block.requested_bytes;
    if (block.state == MemoryBlock::State::kAllocated) allocated += block.bytes;
  }
  out.dict();
  out.field("device", int64_t{device});
  out.field("address", static_cast<int64_t>(segment.address));
  out.field("total_size", segment.bytes);
  out.field("allocated_size", allocated);
  out.field("active_size", active);
  out.field("requested_size", requested);
  out.field("stream", segment.stream);
  out.field("segment_type", segment.large ? "large" : "small");
  out.field("is_expandable", segment.expandable);
  out.field("frames", [&] { stacks.put(segment.scopes); });
  out.field("blocks", [&] { put_blocks(segment, stacks, out); });
}

void put_event(const MemoryEvent& event, Stacks& stacks, PickleWriter& out) {
  out.dict();
  out.field("action", name_of(event.action));
  out.field(event.action == MemoryAction::kOutOfMemory ? "device_free" : "addr", static_cast<int64_t>(event.address));
  out.field("size", event.bytes);
  out.field("stream", event.stream);
  out.field("time_us", event.time_us);
  out.field("frames", [&] { stacks.put(event.scopes); });
}

}  // namespace

std::string to_pickle(const MemorySnapshot& snapshot) {
  PickleWriter out;
  Stacks stacks(snapshot.scopes, out);
  out.dict();
  out.field("segments", [&] {
    out.list();
    for (const MemorySegment& segment : snapshot.segments) {
      put_segment(segment, snapshot.device, stacks, out);
      out.append();
    }
  });
  out.field("device_traces", [&] {
    out.list();
    for (int device = 0; device <= snapshot.device; ++device) {  // A list for each; the others were not asked.
      out.list();
      if (device == snapshot.device) {
        for (const MemoryEvent& event : snapshot.events) {
          put_event(event, stacks, out);
          out.append();
        }
      }
      out.append();
    }
  });
  out.field("allocator_settings", [&] {
    out.dict();
    out.field("expandable_segments", snapshot.expandable_segments);
  });
  out.field("external_annotations", [&] { out.list(); });
  return std::move(out).finish();
}

}  // namespace titan::device
