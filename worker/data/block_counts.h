#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data {

// What a stretch of a file's lines comes to.
struct BlockCount {
  int64_t tokens = 0;
  int32_t documents = 0, lines = 0, bad_lines = 0;  // Malformed lines are documents, too.

  bool operator==(const BlockCount&) const = default;
};

// The counts of all blocks of a dataset, in a file that all ranks write and read: each block's at a place of its own,
// with a checksum. What is missing, damaged or another block's reads as missing; whoever counts a block writes the
// same. A file that cannot be written only costs the counting.
class BlockCounts {
 public:
  explicit BlockCounts(std::string path) : path_(std::move(path)) {}

  // Those of [begin, end), as the file has them now.
  std::vector<std::optional<BlockCount>> read(int64_t begin, int64_t end) const;
  void write(int64_t block, const BlockCount& count) const;

 private:
  const std::string path_;
};

}  // namespace titan::data
