#pragma once

// Places blocks of any size in one range of addresses.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace titan::runtime {

// Decides where in a range of `capacity` bytes each block lies; it does not touch the memory. A block takes the
// smallest free place that is large enough, the first one of several, and freed neighbours become one place, so that
// blocks of other sizes fit there. Only if none is large enough does it take bytes after the last block. Not
// thread-safe.
class BlockArena {
 public:
  explicit BlockArena(size_t capacity) : capacity_(capacity) {}

  // Returns the offset of a block of `bytes` (1 or more), or nothing if no place is left for it.
  std::optional<size_t> take(size_t bytes);
  // Frees a block that take() returned, with the same number of bytes.
  void put(size_t offset, size_t bytes);

  size_t used_bytes() const { return used_; }
  size_t most_bytes() const { return most_; }  // Highest end of a block so far: what the range costs in memory.

 private:
  void add_place(size_t offset, size_t bytes);
  void remove_place(std::map<size_t, size_t>::iterator place);

  const size_t capacity_;
  size_t used_ = 0;
  size_t end_ = 0;  // The last block ends here.
  size_t most_ = 0;
  std::map<size_t, size_t> places_;                // Free places before end_: offset to bytes.
  std::set<std::pair<size_t, size_t>> by_size_{};  // The same as bytes and offset.
};

}  // namespace titan::runtime
