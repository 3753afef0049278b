#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rank/data/documents/block_counts.h"

namespace titan::data {

// The counts of blocks, which ranks share the work of: of each `ranks` blocks in a row (a window) a rank counts its
// own, and one of the next window, and finds the others' in the file. What does not come within `patience` is counted
// here, so that no rank waits for one that is gone, or writes to a file of its own.
template <typename Count>
class SharedCounts {
 public:
  using Counting = std::function<absl::StatusOr<Count>(int64_t block)>;
  SharedCounts(CountsFile<Count> file, int64_t blocks, int rank, int ranks, Counting counting, absl::Duration patience);

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
  const absl::Duration patience_;
  std::map<int64_t, std::vector<Count>> windows_;  // Those of late.
  std::map<int64_t, Count> own_;                   // Counted here, of windows to come.
  bool alone_ = false;                             // Nobody else writes to the file.
  int64_t counted_ = 0, looked_up_ = 0;
};

}  // namespace titan::data
