#pragma once

// Moves the training data to where a checkpoint's data ended.

#include "common/plan/config/job_config.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Returns the position in the stream of several sources, whose weights change by the job's steps. After a change of the
// batch size the rows are no longer a multiple of it.
model::RowsBefore rows_before(const config::JobConfig& config, const checkpoint::LoadResult& loaded,
                              const BatchPlan& batch);

// Moves the loader to where the checkpoint's data ended. Throws Failure DATA_CURSOR if this order or mesh cannot resume
// there.
void restore_data(const RankContext& context, const checkpoint::LoadResult& loaded, const BatchPlan& batch,
                  data::BatchSource& loader);

}  // namespace titan::runtime
