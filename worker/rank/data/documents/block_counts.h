#pragma once

// Counts the tokens and documents of each block of a dataset, keeps the counts in a file, and shares the counting among
// the ranks.

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

// The totals of one block of a dataset.
struct BlockCount {
  int64_t tokens = 0;
  int32_t documents = 0, lines = 0, bad_lines = 0;  // Malformed lines count as documents, too.

  static constexpr size_t kBytes = 20;  // Bytes of a record, without its checksum.
  bool operator==(const BlockCount&) const = default;
};

// The token counts of kDocuments consecutive documents of a pass.
struct DocumentLengths {
  static constexpr int64_t kDocuments = 64;
  static constexpr int32_t kMalformed = -1;
  std::array<int32_t, kDocuments> tokens{};

  static constexpr size_t kBytes = sizeof tokens;
  bool operator==(const DocumentLengths&) const = default;
};

// The counts of all blocks of a dataset, in a file that all ranks read and write. Each block has its own place, with a
// checksum: a record that is missing, damaged or from another block reads as missing. All ranks write the same count of
// a block. If the file cannot be written, each rank counts the blocks itself. Instantiated for BlockCount and
// DocumentLengths.
template <typename Count>
class CountsFile {
 public:
  static constexpr int64_t kRecordBytes = Count::kBytes + sizeof(uint32_t);
  explicit CountsFile(std::string path) : path_(std::move(path)) {}

  // Returns the counts of blocks [begin, end) that the file has now.
  std::vector<std::optional<Count>> read(int64_t begin, int64_t end) const;
  // Writes a block's count. A failure is ignored.
  void write(int64_t block, const Count& count) const;

 private:
  const std::string path_;
};

// Shares the counting of blocks among ranks. Each `ranks` consecutive blocks are a window. A rank counts its block of a
// window and of the next one, and finds the other counts in the file. If `timeout` passes without a new count, it
// counts the missing blocks itself: no rank waits for one that has died or writes to another file.
template <typename Count>
class SharedCounts {
 public:
  using Counting = std::function<absl::StatusOr<Count>(int64_t block)>;
  SharedCounts(CountsFile<Count> file, int64_t blocks, int rank, int ranks, Counting counting, absl::Duration timeout);

  // Blocks until the count is known. Errors: those of counting.
  absl::StatusOr<Count> get(int64_t block);

  int64_t counted() const { return counted_; }      // Blocks that this rank counted, including other ranks' blocks.
  int64_t looked_up() const { return looked_up_; }  // Records read from the file.

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
  std::map<int64_t, std::vector<Count>> windows_;  // Complete windows; cleared when there are too many.
  std::map<int64_t, Count> own_;                   // Counted by this rank, in windows that are not complete.
  bool alone_ = false;                             // No other rank writes to the file.
  int64_t counted_ = 0, looked_up_ = 0;
};

}  // namespace titan::data
