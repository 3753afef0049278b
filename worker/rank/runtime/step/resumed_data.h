#pragma once

#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/data_setup.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// How far the stream of several sources is, whose weights change by the job's steps: after a change of the batch that
// is no longer a multiple of it.
RowsBefore rows_before(const config::JobConfig& config, const checkpoint::LoadResult& loaded, const BatchPlan& batch);

// Puts the loader where the checkpoint's data ended. Throws Failure DATA_CURSOR where this order or mesh cannot go on.
void restore_data(const RankContext& context, const checkpoint::LoadResult& loaded, const BatchPlan& batch,
                  data::Loader& loader);

}  // namespace titan::runtime
