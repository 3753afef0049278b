#pragma once

// Represents ranges of a file's bytes, sets of them, and the Content-Range header.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace titan::http {

struct ByteRange {
  int64_t begin = 0, end = 0;  // Exclusive.
  bool operator==(const ByteRange&) const = default;
  int64_t size() const { return end - begin; }
};

// A set of bytes, as ranges that neither touch nor overlap.
class Ranges {
 public:
  void add(ByteRange range);
  // Returns the parts of [0, size) that the set lacks, in order.
  std::vector<ByteRange> missing(int64_t size) const;
  std::vector<ByteRange> all() const;
  int64_t total() const;

 private:
  std::map<int64_t, int64_t> ends_;  // End of each range by its begin.
};

// Cuts the ranges into pieces of at most `most` bytes.
std::vector<ByteRange> cut(const std::vector<ByteRange>& ranges, int64_t most);

struct ContentRange {
  ByteRange range;
  int64_t size = 0;  // Size of the whole file.
};

// Parses "bytes 0-99/1000". Returns nothing for any other text.
std::optional<ContentRange> parse_content_range(const std::string& text);

}  // namespace titan::http
