#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/loader/loader.h"

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

}  // namespace titan::runtime
