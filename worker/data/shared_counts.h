#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/data/block_counts.h"

namespace titan::data {

// The counts of blocks, which ranks share the work of: of each `ranks` blocks in a row (a window) a rank counts its
// own, and one of the next window, and finds the others' in the file. What does not come within `patience` is counted
// here, so that no rank waits for one that is gone, or writes to a file of its own.
class SharedCounts {
 public:
  using Count = std::function<absl::StatusOr<BlockCount>(int64_t block)>;
  SharedCounts(BlockCounts file, int64_t blocks, int rank, int ranks, Count count, absl::Duration patience);

  // Waits. Errors: those of counting.
  absl::StatusOr<BlockCount> get(int64_t block);

  int64_t counted() const { return counted_; }  // By this rank, whosever they were.

 private:
  struct Missing {
    std::vector<int64_t> blocks;
    int64_t of_others_known = 0;
  };
  absl::Status load(int64_t window);
  absl::Status count_own(int64_t window);
  absl::Status count(int64_t block);
  Missing find_missing(int64_t window);

  const BlockCounts file_;
  const int64_t blocks_;
  const int rank_, ranks_;
  const Count count_;
  const absl::Duration patience_;
  std::map<int64_t, std::vector<BlockCount>> windows_;  // Those of late.
  std::map<int64_t, BlockCount> own_;                   // Counted here, of windows to come.
  bool alone_ = false;                                  // Nobody else writes to the file.
  int64_t counted_ = 0;
};

}  // namespace titan::data
