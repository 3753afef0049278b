#pragma once

// Converts the configuration's keys to mesh-related settings of a rank: axes and connections, the split model, and how
// weights are sharded. Also checks the needs of communicators and the store.

#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/model/model.h"
#include "worker/rank/runtime/engine/sharded_model.h"
#include "worker/rank/runtime/step/microbatches.h"

namespace titan::runtime {

// Returns the parts of compile that GPU ranks use: compile.components if compile.enable is set and resources.kernels is
// not "reference", otherwise none. In bf16 Titan's kernels compute rows of these parts, and with `model` layers' passes
// become device graphs.
kernels::DeviceParts parts_on_gpu(const config::JobConfig& config);
// Returns whether layers' passes become device graphs: parts_on_gpu() has `model`, and compile.graphs is not "off".
bool graphs_on_gpu(const config::JobConfig& config);

// Makes the mesh of the [parallelism] section for a world size.
absl::StatusOr<mesh::Mesh> make_mesh(const config::ParallelismSection& parallelism, int world);

// Returns the axes over which ranks of such a mesh communicate with this optimizer.
std::set<mesh::Axis> axes_of(const mesh::Mesh& mesh, const config::OptimizerSection& optimizer = {});
// Returns the axes on which ranks send messages to each other, apart from a pipeline's.
std::map<mesh::Axis, comm::Messages> messages_of(const config::ParallelismSection& parallelism);

// Returns the axes with separate connections from those of weights, because each matmul waits for its operands' scales.
std::set<mesh::Axis> axes_apart(const config::JobConfig& config);
// On GPUs, checks that this rank's communicators can have separate streams (comm::kMaxCommunicators). InvalidArgument:
// they cannot.
absl::Status check_communicators(const config::JobConfig& config, const mesh::Mesh& mesh, int rank);

// Builds the model and splits it over the mesh, except for FSDP and the pipeline. `seq_len`: tokens of the longest row
// that it processes. Errors: what the model does not support.
absl::StatusOr<model::Model> build_model(const config::JobConfig& config, const models::ModelSpec& spec,
                                         int64_t seq_len, const comm::DeviceMesh& mesh);

// Returns how the model's weights are sharded. InvalidArgument: an unknown data type.
absl::StatusOr<ShardingOptions> sharding_options(const config::JobConfig& config, const models::ModelSpec& spec,
                                                 const pipeline::PipelinePlan& plan, const comm::DeviceMesh& mesh);

MicrobatchOptions microbatch_options(const config::JobConfig& config, const models::ModelSpec& spec,
                                     const comm::DeviceMesh& mesh, at::Device device);

// Returns whether a forward and a backward pass that the schedule pairs run concurrently. This needs experts on several
// ranks, whose exchanges overlap with the other pass, and weights that stay gathered.
bool overlaps_pairs(const config::JobConfig& config);

// Returns whether this rank's loss and tokens count. The ranks of a tensor group have the same ones, and only the last
// stage of a pipeline has a loss.
bool reports_loss(const pipeline::Schedule& schedule, const comm::DeviceMesh& mesh);

// Checks that rank 0 of `world` ranks, which hosts the store, may open enough files. Each rank has two connections to
// it, for work and for heartbeats. `descriptors`: the limit, or 0 if unknown.
absl::Status check_fd_limit(int world, int64_t descriptors);

}  // namespace titan::runtime
