#include "worker/runtime/batch_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::runtime {

absl::StatusOr<BatchPlan> plan_batch(int64_t global_batch, int64_t local_batch, int64_t data_parallel_ranks) {
  if (global_batch < 0) global_batch = local_batch * data_parallel_ranks;
  if (global_batch % data_parallel_ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat("training.global_batch_size = ", global_batch,
                                                   " does not divide by the ", data_parallel_ranks,
                                                   " data-parallel ranks; choose a number of ranks that divides it"));
  }
  const int64_t rows = global_batch / data_parallel_ranks;
  int64_t local = std::min(local_batch, rows);
  while (rows % local != 0) --local;
  return BatchPlan{global_batch, local, rows / local};
}

}  // namespace titan::runtime
