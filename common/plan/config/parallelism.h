#pragma once

// Derives a job's mesh and its pipeline (which rank does what when, and which blocks each stage holds) from
// [parallelism], and checks that they can split its model and batch.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/mesh/mesh.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::config {

// The degrees as they stand; -1 is resolved by mesh::Mesh::create().
mesh::Degrees degrees_of(const Parallelism& parallelism);

// Whether a mesh can split the model and batches of training.local_batch_size rows, and its pipeline's schedule takes
// them; reads pipeline_parallel_schedule_csv. A job that resumes under another mesh checks this before it chooses a
// batch size. Errors: InvalidArgument, message beginning with the key.
absl::Status check_split(const JobConfig& config, const models::ModelSpec& spec, const mesh::Mesh& mesh);

// Warnings about a mesh that can split the model but wastes much: more FSDP ranks than its tensors have rows. Empty for
// a model of a library.
std::vector<std::string> shard_warnings(const JobConfig& config);

// What the configuration says about a pipeline over a model of `n_layers` (0: not known), without the text of
// pipeline_parallel_schedule_csv.
pipeline::PlanOptions pipeline_options(const JobConfig& config, std::int64_t n_layers);

// The text of a schedule's file. Errors: those of opening it; InvalidArgument when it is not a file, or too large for
// one.
absl::StatusOr<std::string> read_schedule_file(const std::string& path);

// The schedule and the split that the ranks run; reads pipeline_parallel_schedule_csv. Also for one rank: one stage.
// Errors: InvalidArgument, message beginning with the key; those of opening the file.
absl::StatusOr<pipeline::Plan> pipeline_plan(const JobConfig& config, std::int64_t n_layers);

// Warnings about a pipeline that runs, but not well, such as one with fewer microbatches than stages. Reads no file.
std::vector<std::string> pipeline_warnings(const JobConfig& config);

}  // namespace titan::config
