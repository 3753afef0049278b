#pragma once

// plan_batch() splits the rows of an optimizer step for a data-parallel rank. A job that resumes keeps its batch when
// its mesh changes.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// How a data-parallel rank processes its rows of one optimizer step.
struct BatchPlan {
  int64_t global_batch = 0;  // Rows of a step, over all ranks.
  int64_t local_batch = 0;   // Rows that a rank processes in one run of the pipeline.
  int64_t microbatches = 0;  // Number of such runs per rank and step.

  bool operator==(const BatchPlan&) const = default;
};

// Whether the mesh accepts local batches of `rows` rows: whole microbatches of a pipeline, enough of them for its
// schedule, and tokens that tensor ranks can share. The error explains why not.
using TakesBatch = std::function<absl::Status(int64_t rows)>;

// Plans the batch. `global_batch` -1: one local batch per step. The local batch divides a rank's rows, so that a job
// keeps its global batch when its mesh changes. It is the largest such divisor that the mesh accepts and that does not
// exceed `local_batch` (for which memory was planned), or otherwise the smallest larger one. InvalidArgument:
// `data_parallel_ranks` does not divide the global batch, or the mesh accepts no divisor of a rank's rows.
absl::StatusOr<BatchPlan> plan_batch(int64_t global_batch, int64_t local_batch, int64_t data_parallel_ranks,
                                     const TakesBatch& takes = {});

// Returns the configuration's batch on this mesh. Errors: those of plan_batch().
absl::StatusOr<BatchPlan> configured_batch(const RankContext& context, const models::ModelSpec& spec);

// Returns the batch of a job that resumes with this train state. A batch size that is not configured belongs to the job
// and not to the mesh, so it does not change with the number of ranks. A configured one applies from now on. Throws
// Failure.
BatchPlan resumed_batch(const RankContext& context, const models::ModelSpec& spec, const nlohmann::json& train_state,
                        const BatchPlan& configured);

}  // namespace titan::runtime
