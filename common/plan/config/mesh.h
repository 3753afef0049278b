#pragma once

// What a job's mesh has to divide, and whether it does.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/model_spec.h"

namespace titan::config {

// The degrees as they stand; -1 is resolved by mesh::Mesh::create().
mesh::Degrees degrees_of(const Parallelism& parallelism);

// Whether a mesh can split the model and batches of training.local_batch_size rows, and its pipeline's schedule takes
// them; reads pipeline_parallel_schedule_csv. A job that goes on under another mesh asks before it settles on a batch
// size. Errors: InvalidArgument, message beginning with the key.
absl::Status check_split(const JobConfig& config, const models::ModelSpec& spec, const mesh::Mesh& mesh);

// What to tell of a mesh that can split the model but wastes much: more FSDP ranks than its tensors have rows. Empty
// for a model of a library.
std::vector<std::string> shard_warnings(const JobConfig& config);

}  // namespace titan::config
