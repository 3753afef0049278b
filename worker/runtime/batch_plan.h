#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace titan::runtime {

// How the rows of one optimizer step are dealt to one data-parallel rank.
struct BatchPlan {
  int64_t global_batch = 0;  // Rows of a step, over all ranks.
  int64_t local_batch = 0;   // Rows of one microbatch of one rank.
  int64_t microbatches = 0;  // Per rank and step.

  bool operator==(const BatchPlan&) const = default;
};

// `global_batch` -1: one microbatch a step. The local batch is the largest divisor of a rank's rows that is not above
// `local_batch`, so that a job keeps its global batch when the number of data-parallel ranks changes.
// Errors: InvalidArgument when the global batch does not divide by `data_parallel_ranks`.
absl::StatusOr<BatchPlan> plan_batch(int64_t global_batch, int64_t local_batch, int64_t data_parallel_ranks);

}  // namespace titan::runtime
