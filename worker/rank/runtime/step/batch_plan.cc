#include "worker/rank/runtime/step/batch_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/counted.h"

namespace titan::runtime {
namespace {

// The divisors of `rows` in the order in which they are tried: down from `wanted`, then up from it.
std::vector<int64_t> by_preference(int64_t rows, int64_t wanted) {
  std::vector<int64_t> below, above;
  for (int64_t size = 1; size <= rows; ++size) {
    if (rows % size == 0) (size <= wanted ? below : above).push_back(size);
  }
  std::reverse(below.begin(), below.end());
  below.insert(below.end(), above.begin(), above.end());
  return below;
}

}  // namespace

absl::StatusOr<BatchPlan> plan_batch(int64_t global_batch, int64_t local_batch, int64_t data_parallel_ranks,
                                     const TakesBatch& takes) {
  if (global_batch < 0) global_batch = local_batch * data_parallel_ranks;
  if (global_batch < 1 || global_batch % data_parallel_ranks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.global_batch_size = ", global_batch, " does not divide by the ",
                     counted(data_parallel_ranks, "data-parallel rank"), "; choose a number of ranks that divides it"));
  }
  const int64_t rows = global_batch / data_parallel_ranks;
  const std::vector<int64_t> sizes = by_preference(rows, local_batch);
  std::vector<std::string> reasons;
  for (const int64_t size : sizes) {
    const absl::Status taken = takes ? takes(size) : absl::OkStatus();
    if (taken.ok()) return BatchPlan{global_batch, size, rows / size};
    reasons.push_back(absl::StrCat("with ", size, ": ", std::string(taken.message())));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "training.global_batch_size = ", global_batch, " gives ",
      data_parallel_ranks == 1 ? "the data-parallel rank"
                               : absl::StrCat("each of the ", data_parallel_ranks, " data-parallel ranks"),
      " ", counted(rows, "row"),
      ", and this mesh takes no local batch that divides them; choose fewer data-parallel ranks or another "
      "pipeline (",
      absl::StrJoin(reasons, "; "), ")"));
}

}  // namespace titan::runtime
