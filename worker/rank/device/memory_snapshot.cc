#include "worker/rank/device/memory_snapshot.h"

#include <map>
#include <optional>

#include "worker/rank/pickle/writer.h"

namespace titan::device {
namespace {

// Writes each stack once; events and blocks refer to it.
class Stacks {
 public:
  Stacks(const std::vector<std::vector<std::string>>& stacks, pickle::Writer& out) : stacks_(stacks), out_(out) {
    numbers_.resize(stacks.size());
  }

  // Writes the entry "frames" of a dict, which is a list.
  void put(int32_t stack) {
    out_.text("frames");
    const auto index = static_cast<size_t>(stack) < stacks_.size() ? static_cast<size_t>(stack) : 0;
    if (index >= stacks_.size()) {
      out_.empty_list();
    } else if (numbers_[index]) {
      out_.get_memo(*numbers_[index]);
    } else {
      put_frames(stacks_[index]);
      numbers_[index] = out_.memoize();
    }
  }

 private:
  void put_frames(const std::vector<std::string>& names) {
    out_.empty_list();
    for (const std::string& name : names) {
      put_frame(name);
      out_.append();
    }
  }

  void put_frame(const std::string& name) {
    if (const auto found = frames_.find(name); found != frames_.end()) {
      out_.get_memo(found->second);
      return;
    }
    out_.empty_dict().mark();
    out_.text("filename").text("titan");
    out_.text("line").integer(0);
    out_.text("name").text(name);
    out_.set_items();
    frames_.emplace(name, out_.memoize());
  }

  const std::vector<std::vector<std::string>>& stacks_;
  pickle::Writer& out_;
  std::vector<std::optional<uint32_t>> numbers_;
  std::map<std::string, uint32_t> frames_;
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

void put_blocks(const MemorySegment& segment, Stacks& stacks, pickle::Writer& out) {
  out.text("blocks").empty_list();
  auto address = static_cast<int64_t>(segment.address);
  for (const MemoryBlock& block : segment.blocks) {
    out.empty_dict().mark();
    out.text("address").integer(address);
    out.text("size").integer(block.bytes);
    out.text("requested_size").integer(block.requested_bytes);
    out.text("state").text(name_of(block.state));
    stacks.put(block.scopes);
    out.set_items().append();
    address += block.bytes;
  }
}

void put_segment(const MemorySegment& segment, int device, Stacks& stacks, pickle::Writer& out) {
  int64_t allocated = 0, active = 0, requested = 0;
  for (const MemoryBlock& block : segment.blocks) {
    if (block.state == MemoryBlock::State::kFree) continue;
    active += block.bytes;
    requested += block.requested_bytes;
    if (block.state == MemoryBlock::State::kAllocated) allocated += block.bytes;
  }
  out.empty_dict().mark();
  out.text("device").integer(device);
  out.text("address").integer(static_cast<int64_t>(segment.address));
  out.text("total_size").integer(segment.bytes);
  out.text("allocated_size").integer(allocated);
  out.text("active_size").integer(active);
  out.text("requested_size").integer(requested);
  out.text("stream").integer(segment.stream);
  out.text("segment_type").text(segment.large ? "large" : "small");
  out.text("is_expandable").boolean(segment.expandable);
  stacks.put(segment.scopes);
  put_blocks(segment, stacks, out);
  out.set_items();
}

void put_event(const MemoryEvent& event, Stacks& stacks, pickle::Writer& out) {
  out.empty_dict().mark();
  out.text("action").text(name_of(event.action));
  out.text(event.action == MemoryAction::kOutOfMemory ? "device_free" : "addr");
  out.integer(static_cast<int64_t>(event.address));
  out.text("size").integer(event.bytes);
  out.text("stream").integer(event.stream);
  out.text("time_us").integer(event.time_us);
  stacks.put(event.scopes);
  out.set_items();
}

// Writes one list per device; those before this device are empty.
void put_traces(const MemorySnapshot& snapshot, Stacks& stacks, pickle::Writer& out) {
  out.text("device_traces").empty_list();
  for (int device = 0; device < snapshot.device; ++device) out.empty_list().append();
  out.empty_list();
  for (const MemoryEvent& event : snapshot.events) {
    put_event(event, stacks, out);
    out.append();
  }
  out.append();
}

}  // namespace

std::string to_pickle(const MemorySnapshot& snapshot) {
  pickle::Writer out(2);
  Stacks stacks(snapshot.scopes, out);
  out.empty_dict().mark();
  out.text("segments").empty_list();
  for (const MemorySegment& segment : snapshot.segments) {
    put_segment(segment, snapshot.device, stacks, out);
    out.append();
  }
  put_traces(snapshot, stacks, out);
  out.text("allocator_settings").empty_dict().mark();
  out.text("expandable_segments").boolean(snapshot.expandable_segments).set_items();
  out.text("external_annotations").empty_list();
  return out.set_items().finish();
}

}  // namespace titan::device
