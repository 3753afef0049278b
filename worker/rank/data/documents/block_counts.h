#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data {

// What a stretch of a file's documents comes to.
struct BlockCount {
  int64_t tokens = 0;
  int32_t documents = 0, lines = 0, bad_lines = 0;  // Malformed lines are documents, too.

  static constexpr size_t kBytes = 20;  // Of it are kept.
  bool operator==(const BlockCount&) const = default;
};

// The tokens of some documents that follow each other in a pass.
struct DocumentLengths {
  static constexpr int64_t kDocuments = 64;
  static constexpr int32_t kMalformed = -1;
  std::array<int32_t, kDocuments> tokens{};

  static constexpr size_t kBytes = sizeof tokens;
  bool operator==(const DocumentLengths&) const = default;
};

// The counts of all blocks of a dataset, in a file that all ranks write and read: each block's at a place of its own,
// with a checksum. What is missing, damaged or another block's reads as missing; whoever counts a block writes the
// same. A file that cannot be written only costs the counting. Of BlockCount and DocumentLengths.
template <typename Count>
class CountsFile {
 public:
  static constexpr int64_t kRecordBytes = Count::kBytes + sizeof(uint32_t);
  explicit CountsFile(std::string path) : path_(std::move(path)) {}

  // Those of [begin, end), as the file has them now.
  std::vector<std::optional<Count>> read(int64_t begin, int64_t end) const;
  void write(int64_t block, const Count& count) const;

 private:
  const std::string path_;
};

}  // namespace titan::data
