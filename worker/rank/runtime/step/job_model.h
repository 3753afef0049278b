#pragma once

// Finds the model that an attempt trains: loads the job's library, and takes from the weights that it starts with the
// numbers that belong to them.

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Makes known what the job's library brings (experimental.custom_import), models and datasets, and looks whether all
// datasets that the job names are there. Before anything asks for a model or for data. Errors: those of
// model::load_plugin, data::load_datasets and data::check_dataset_name, naming the key.
absl::Status load_job_library(const config::JobConfig& config);

// What decides where this attempt begins: folders, keys, the job and what it has committed. Everything else of it has
// its default.
checkpoint::Setup start_setup(const RankContext& context);

// The model that this attempt trains: the configuration's `spec`, with the numbers that belong to the weights which it
// begins with (checkpoint/checkpointer.h). Rank 0 looks and all ranks hear it, so that they build one model: collective
// where checkpoints are on, once the mesh is joined. Throws Failure.
models::ModelSpec start_spec(const RankContext& context, const models::ModelSpec& spec);

}  // namespace titan::runtime
