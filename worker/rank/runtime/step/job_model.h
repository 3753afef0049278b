#pragma once

// Finds the model that an attempt trains: loads the job's library, and takes the numbers that belong to the weights
// from which it starts.

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Registers the models and datasets of the job's library (experimental.custom_import) and checks that all datasets of
// the job exist. Call it before models and data are used. Errors: those of model::load_plugin, data::load_datasets and
// data::check_dataset_name, with the name of the key.
absl::Status load_job_library(const config::JobConfig& config);

// Returns the settings that decide where this attempt begins: folders, keys, the job and its committed step. All other
// settings have their defaults.
checkpoint::Setup start_setup(const RankContext& context);

// Returns the model that this attempt trains: the configuration's `spec` with the numbers that belong to the weights
// from which it starts (checkpoint/checkpointer.h). Rank 0 reads them and broadcasts, so that all ranks build the same
// model. Collective if checkpoints are on, after the mesh is joined. Throws Failure.
models::ModelSpec start_spec(const RankContext& context, const models::ModelSpec& spec);

}  // namespace titan::runtime
