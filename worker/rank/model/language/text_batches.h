#pragma once

// Opens the loaders of a language model's training and validation data.

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/model/objective.h"

namespace titan::model {

// Open a loader. Errors: those of data::open_loader and data_files::find_dataset_files, with the name of the
// configuration's key.
absl::StatusOr<std::unique_ptr<data::DataLoader>> open_training_loader(const config::JobConfig& config,
                                                                       const DataShare& share);
absl::StatusOr<std::unique_ptr<data::DataLoader>> open_validation_loader(const config::JobConfig& config,
                                                                         const DataShare& share);

}  // namespace titan::model
