#pragma once

// Counts how many tokens and documents each block of a dataset has, keeps the counts in a file, and shares the counting
// among the ranks.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

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
// same. A file that cannot be written only costs the counting. Instantiated for BlockCount and DocumentLengths.
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

// The counts of blocks, which ranks share the work of: of each `ranks` blocks in a row (a window) a rank counts its
// own, and one of the next window, and finds the others' in the file. What does not come within `timeout` is counted
// here, so that no rank waits for one that is gone, or writes to a file of its own.
template <typename Count>
class SharedCounts {
 public:
  using Counting = std::function<absl::StatusOr<Count>(int64_t block)>;
  SharedCounts(CountsFile<Count> file, int64_t blocks, int rank, int ranks, Counting counting, absl::Duration timeout);

  // Waits. Errors: those of counting.
  absl::StatusOr<Count> get(int64_t block);

  int64_t counted() const { return counted_; }      // By this rank, whosever they were.
  int64_t looked_up() const { return looked_up_; }  // Records that were read of the file.

 private:
  struct Missing {
    std::vector<int64_t> blocks;
    int64_t of_others_known = 0;
  };
  absl::Status load(int64_t window);
  absl::Status count_own(int64_t window);
  absl::Status count(int64_t block);
  Missing find_missing(int64_t window);

  const CountsFile<Count> file_;
  const int64_t blocks_;
  const int rank_, ranks_;
  const Counting counting_;
  const absl::Duration timeout_;
  std::map<int64_t, std::vector<Count>> windows_;  // Those of late.
  std::map<int64_t, Count> own_;                   // Counted here, of windows to come.
  bool alone_ = false;                             // Nobody else writes to the file.
  int64_t counted_ = 0, looked_up_ = 0;
};

}  // namespace titan::data
