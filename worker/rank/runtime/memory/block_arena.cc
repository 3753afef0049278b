#include "worker/rank/runtime/memory/block_arena.h"

#include <algorithm>
#include <iterator>

namespace titan::runtime {

void BlockArena::add_place(size_t offset, size_t bytes) {
  places_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void BlockArena::remove_place(std::map<size_t, size_t>::iterator place) {
  by_size_.erase({place->second, place->first});
  places_.erase(place);
}

std::optional<size_t> BlockArena::take(size_t bytes) {
  const auto fitting = by_size_.lower_bound({bytes, 0});
  size_t offset = end_;
  if (fitting != by_size_.end()) {
    const auto [found_bytes, found] = *fitting;
    remove_place(places_.find(found));
    if (found_bytes > bytes) add_place(found + bytes, found_bytes - bytes);
    offset = found;
  } else {
    if (bytes > capacity_ - end_) return std::nullopt;
    end_ += bytes;
    most_ = std::max(most_, end_);
  }
  used_ += bytes;
  return offset;
}

void BlockArena::put(size_t offset, size_t bytes) {
  used_ -= bytes;
  const auto after = places_.lower_bound(offset);
  if (after != places_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove_place(before);
    }
  }
  if (after != places_.end() && offset + bytes == after->first) {
    bytes += after->second;
    remove_place(after);
  }
  if (offset + bytes == end_) {
    end_ = offset;
  } else {
    add_place(offset, bytes);
  }
}

}  // namespace titan::runtime
