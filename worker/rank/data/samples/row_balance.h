#pragma once

// Deals the rows of a step to data-parallel ranks that wait for each other in every microbatch, so that those which
// work at the same time have about the same work.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"

namespace titan::data {

// The places of a step's rows. Place (m * ranks + r) * rows + i is row i of rank r in microbatch m.
struct RowPlaces {
  int64_t microbatches = 1;
  int64_t ranks = 1;
  int64_t rows = 1;  // Each rank has so many in each microbatch.

  int64_t all() const { return microbatches * ranks * rows; }
};

// Returns the row of each place. `costs` are those of the rows, 0 or more, one for each place. Every rank gets the same
// number of rows: the costliest first, each to the share with the smallest sum that is not full (longest processing
// time); then shares of about the same sum work in the same microbatch. The rows stay as they come if that is not
// better by work_of(). Ties go to the earlier row and place, so that all ranks compute the same.
std::vector<int64_t> balance_rows(const std::vector<int64_t>& costs, const RowPlaces& places);

// Returns the cost of a step in which all ranks wait for the slowest one in each microbatch: the sum over microbatches
// of the largest sum of a rank. `rows` is the row of each place.
int64_t work_of(const std::vector<int64_t>& rows, const std::vector<int64_t>& costs, const RowPlaces& places);

// Balances step after step. Several threads that need the same step weigh its rows together. Thread-safe.
class RowBalance {
 public:
  // Returns the cost of a row of the stream, the same on every rank.
  using CostOfRow = std::function<absl::StatusOr<int64_t>(int64_t row)>;
  RowBalance(const RowPlaces& places, CostOfRow cost_of_row) : places_(places), cost_of_row_(std::move(cost_of_row)) {}

  // Returns the number in the stream of the row at a place of the step whose first row is `first`. Errors: those of
  // CostOfRow, for any row of the step.
  absl::StatusOr<int64_t> row_at(int64_t first, int64_t place);

 private:
  struct Step {
    std::vector<int64_t> costs, rows;
    int64_t begun = 0, weighed = 0;
    absl::Status status;
  };
  std::shared_ptr<Step> step_at(int64_t first);
  void weigh(int64_t first, Step& step);

  const RowPlaces places_;
  const CostOfRow cost_of_row_;
  sync::Mutex mutex_;
  sync::Condition weighed_;
  std::map<int64_t, std::shared_ptr<Step>> steps_ TITAN_GUARDED_BY(mutex_);  // By their first rows; the newest ones.
};

}  // namespace titan::data
