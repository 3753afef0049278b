#pragma once

// Derives a job's mesh and pipeline (which rank does what when, and which blocks each stage holds) from [parallelism],
// and checks that they can split its model and batch.

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

// Returns the configured degrees; mesh::Mesh::create() resolves -1.
mesh::Degrees degrees_of(const ParallelismSection& parallelism);

// Checks that a mesh can split the model and batches of training.local_batch_size rows, and that its pipeline's
// schedule supports them; reads pipeline_parallel_schedule_csv. A job that resumes under another mesh checks this
// before it chooses a batch size. Errors: InvalidArgument, message beginning with the key.
absl::Status check_split(const JobConfig& config, const models::ModelSpec& spec, const mesh::Mesh& mesh);

// Returns warnings about a mesh that can split the model but wastes memory, because padding makes each FSDP gather at
// least a quarter larger. Empty for a model of a library.
std::vector<std::string> shard_warnings(const JobConfig& config);

// Returns the configuration's pipeline options for a model of these blocks, without the text of
// pipeline_parallel_schedule_csv.
pipeline::PlanOptions pipeline_options(const JobConfig& config, const pipeline::ModelBlocks& blocks);

// Returns the text of a schedule file. Errors: those of opening it; InvalidArgument when it is not a file or is too
// large.
absl::StatusOr<std::string> read_schedule_file(const std::string& path);

// Returns the schedule and the split that the ranks run; without a pipeline, a single stage. Reads
// pipeline_parallel_schedule_csv. Errors: InvalidArgument, message beginning with the key; those of opening the file.
absl::StatusOr<pipeline::PipelinePlan> pipeline_plan(const JobConfig& config, const pipeline::ModelBlocks& blocks);

// Returns warnings about a pipeline that runs inefficiently, such as with fewer microbatches than stages. Reads no
// file.
std::vector<std::string> pipeline_warnings(const JobConfig& config);

}  // namespace titan::config
