#pragma once

// plan_batch() deals the rows of an optimizer step to a data-parallel rank; a job that resumes keeps its batch when its
// mesh changes.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// How the rows of one optimizer step are dealt to one data-parallel rank.
struct BatchPlan {
  int64_t global_batch = 0;  // Rows of a step, over all ranks.
  int64_t local_batch = 0;   // Rows that a rank takes in one piece: one run of the pipeline.
  int64_t microbatches = 0;  // Such pieces per rank and step.

  bool operator==(const BatchPlan&) const = default;
};

// Whether the mesh can take local batches of so many rows: whole microbatches of a pipeline, enough of them for its
// schedule, tokens that tensor ranks can share. The error says why not.
using TakesBatch = std::function<absl::Status(int64_t rows)>;

// `global_batch` -1: one piece a step. The local batch divides a rank's rows, so that a job keeps its global batch when
// its mesh changes: the largest not above `local_batch` that the mesh takes, which is what memory was planned for, or
// else the smallest above.
// Errors: InvalidArgument when the global batch does not divide by `data_parallel_ranks`, or when the mesh takes no
// divisor of a rank's rows.
absl::StatusOr<BatchPlan> plan_batch(int64_t global_batch, int64_t local_batch, int64_t data_parallel_ranks,
                                     const TakesBatch& takes = {});

// The configuration's batch on this mesh. Errors: those of plan_batch().
absl::StatusOr<BatchPlan> configured_batch(const RankContext& context, const models::ModelSpec& spec);

// The batch of a job that resumes with this train state. One that nobody set belongs to the job, not to the mesh: it
// stays what it was when the number of ranks changes. A set key says what the job wants from here on. Throws Failure.
BatchPlan kept_batch(const RankContext& context, const models::ModelSpec& spec, const nlohmann::json& train_state,
                     const BatchPlan& configured);

}  // namespace titan::runtime
