#pragma once

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"

namespace titan::runtime {

// Makes known what the job's library brings (experimental.custom_import), models and datasets, and looks whether all
// datasets that the job names are there. Before anything asks for a model or for data. Errors: those of
// model::load_plugin, data::load_datasets and data::check_dataset_name, naming the key.
absl::Status load_job_library(const config::JobConfig& config);

}  // namespace titan::runtime
