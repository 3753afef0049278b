#pragma once

// Opens the loaders of training and validation data and moves them to where a checkpoint's data ended.

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Number of rows of the stream that the finished steps consumed.
struct RowsBefore {
  int64_t steps = 0;
  int64_t rows = 0;
};

// The rows that this rank reads.
struct DataShare {
  int dp_rank = 0;
  int dp_size = 1;
  int64_t local_batch = 1;
  int64_t global_batch = 1;  // Rows of a step after `before`; weights of sources change by steps.
  RowsBefore before = {};    // The finished steps.
  std::shared_ptr<trace::SpanRecorder> spans = nullptr;  // LoaderOptions::spans.
};

// Open a loader. Errors: those of data::open_loader and data_files::find_dataset_files, with the name of the
// configuration's key.
absl::StatusOr<std::unique_ptr<data::DataLoader>> open_training_loader(const config::JobConfig& config,
                                                                       const DataShare& share);
absl::StatusOr<std::unique_ptr<data::DataLoader>> open_validation_loader(const config::JobConfig& config,
                                                                         const DataShare& share);

// Returns the position in the stream of several sources, whose weights change by the job's steps. After a change of the
// batch size the rows are no longer a multiple of it.
RowsBefore rows_before(const config::JobConfig& config, const checkpoint::LoadResult& loaded, const BatchPlan& batch);

// Moves the loader to where the checkpoint's data ended. Throws Failure DATA_CURSOR if this order or mesh cannot resume
// there.
void restore_data(const RankContext& context, const checkpoint::LoadResult& loaded, const BatchPlan& batch,
                  data::DataLoader& loader);

}  // namespace titan::runtime
