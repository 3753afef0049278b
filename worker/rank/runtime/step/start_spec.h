#pragma once

#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// What decides where this attempt begins: folders, keys, the job and what it has committed. Everything else of it has
// its default.
checkpoint::Setup start_setup(const RankContext& context);

// The model that this attempt trains: the configuration's `spec`, with the numbers that belong to the weights which it
// begins with (checkpoint/start_model.h). Rank 0 looks and all ranks hear it, so that they build one model: collective
// where checkpoints are on, once the mesh is joined. Throws Failure.
models::ModelSpec start_spec(const RankContext& context, const models::ModelSpec& spec);

}  // namespace titan::runtime
