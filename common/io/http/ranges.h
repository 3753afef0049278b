#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace titan::http {

struct Range {
  int64_t begin = 0, end = 0;  // Without `end`.
  bool operator==(const Range&) const = default;
  int64_t size() const { return end - begin; }
};

// A set of bytes, as ranges that neither touch nor overlap.
class Ranges {
 public:
  void add(Range range);
  // What [0, size) lacks, in order.
  std::vector<Range> missing(int64_t size) const;
  std::vector<Range> all() const;
  int64_t total() const;

 private:
  std::map<int64_t, int64_t> ends_;  // By where they begin.
};

// The ranges cut into pieces of at most `most` bytes.
std::vector<Range> cut(const std::vector<Range>& ranges, int64_t most);

}  // namespace titan::http
