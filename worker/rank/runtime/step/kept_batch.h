#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// The configuration's batch on this mesh. Errors: those of plan_batch().
absl::StatusOr<BatchPlan> configured_batch(const RankContext& context, const models::ModelSpec& spec);

// The batch of a job that resumes with this train state. One that nobody set belongs to the job, not to the mesh: it
// stays what it was when the number of ranks changes. A set key says what the job wants from here on. Throws Failure.
BatchPlan kept_batch(const RankContext& context, const models::ModelSpec& spec, const nlohmann::json& train_state,
                     const BatchPlan& configured);

}  // namespace titan::runtime
