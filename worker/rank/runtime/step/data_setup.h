#pragma once

// The loaders of training and validation data are opened here, and moved to the place where a checkpoint's data ended.

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// How many rows of the stream the finished steps took.
struct RowsBefore {
  int64_t steps = 0;
  int64_t rows = 0;
};

// Which rows this rank reads.
struct DataShare {
  int dp_rank = 0;
  int dp_size = 1;
  int64_t local_batch = 1;
  int64_t global_batch = 1;                       // Rows of a step, by which sources' weights change,
  RowsBefore before = {};                         // from here on.
  std::shared_ptr<trace::Spans> spans = nullptr;  // LoaderOptions::spans.
};

// Errors: as data::open_loader and data_files::find_dataset_files, naming the configuration's key.
absl::StatusOr<std::unique_ptr<data::Loader>> open_training_loader(const config::JobConfig& config,
                                                                   const DataShare& share);
absl::StatusOr<std::unique_ptr<data::Loader>> open_validation_loader(const config::JobConfig& config,
                                                                     const DataShare& share);

// How far the stream of several sources is, whose weights change by the job's steps: after a change of the batch that
// is no longer a multiple of it.
RowsBefore rows_before(const config::JobConfig& config, const checkpoint::LoadResult& loaded, const BatchPlan& batch);

// Puts the loader where the checkpoint's data ended. Throws Failure DATA_CURSOR where this order or mesh cannot go on.
void restore_data(const RankContext& context, const checkpoint::LoadResult& loaded, const BatchPlan& batch,
                  data::Loader& loader);

}  // namespace titan::runtime
