#pragma once

// From the configuration's keys to what the parts of a rank want to know about the mesh: its axes and connections, the
// split model, and how weights are sharded; with the checks of what communicators and the store need.

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

// What of compile GPU ranks have: compile.components while compile.enable is set and resources.kernels is not
// "reference", else nothing. In bf16 Titan's own kernels compute rows of these parts; with `model` layers' passes
// become graphs of the device.
kernels::DeviceParts parts_on_gpu(const config::JobConfig& config);
// The latter unless compile.graphs is "off".
bool graphs_on_gpu(const config::JobConfig& config);

// The degrees of the [parallelism] section, resolved for a world.
absl::StatusOr<mesh::Mesh> make_mesh(const config::Parallelism& parallelism, int world);

// The axes that ranks of such a mesh talk over, with this optimizer.
std::set<mesh::Axis> axes_of(const mesh::Mesh& mesh, const config::Optimizer& optimizer = {});
// On which of them ranks send to each other, besides a pipeline's.
std::map<mesh::Axis, comm::Messages> messages_of(const config::Parallelism& parallelism);

// Which of them have connections apart from those of weights: where each product waits for the scales of its operands.
std::set<mesh::Axis> axes_apart(const config::JobConfig& config);
// On GPUs, whether this rank's communicators have streams of their own (comm::kMaxCommunicators).
// Errors: InvalidArgument.
absl::Status check_communicators(const config::JobConfig& config, const mesh::Mesh& mesh, int rank);

// Builds the model and splits it over the mesh, all but FSDP and the pipeline. `seq_len`: longest row that it sees.
// Errors: what the model cannot do.
absl::StatusOr<model::Model> build_model(const config::JobConfig& config, const models::ModelSpec& spec,
                                         int64_t seq_len, const comm::DeviceMesh& mesh);

// Errors: unknown data types.
absl::StatusOr<ShardingOptions> sharding_options(const config::JobConfig& config, const models::ModelSpec& spec,
                                                 const pipeline::Plan& plan, const comm::DeviceMesh& mesh);

MicrobatchOptions microbatch_options(const config::JobConfig& config, const models::ModelSpec& spec,
                                     const comm::DeviceMesh& mesh, at::Device device);

// Whether a forward and a backward pass that the schedule pairs run side by side: with experts on several ranks, whose
// exchanges one hides behind the other, and weights that stay gathered.
bool overlaps_pairs(const config::JobConfig& config);

// Whether this rank's loss and tokens count: the ranks of a tensor group have the same ones, and only the last stage
// of a pipeline has a loss.
bool reports_loss(const pipeline::Schedule& schedule, const comm::DeviceMesh& mesh);

// Whether rank 0 of `world` ranks, which hosts their store, may open enough files: each rank holds two connections with
// it, one for its work and one for its pulse. `descriptors`: the limit, 0 where it is not known.
absl::Status room_for_store(int world, int64_t descriptors);

}  // namespace titan::runtime
