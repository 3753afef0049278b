#include "worker/rank/runtime/step/parallel_setup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/low_precision.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/update_rules.h"
#include "common/plan/config/validate.h"
#include "worker/rank/model/adapters.h"
#include "worker/rank/model/attention_masks.h"
#include "worker/rank/parallel/weight_gather.h"
#include "worker/rank/runtime/step/low_precision_setup.h"

namespace titan::runtime {

using mesh::Axis;

kernels::DeviceParts parts_on_gpu(const config::JobConfig& config) {
  const config::CompileSection& compile = config.compile;
  if (config.resources.kernels == "reference") return {};
  if (!compile.enable) return {.optimizer = true};
  const auto has = [&](const char* part) {
    return std::find(compile.components.begin(), compile.components.end(), part) != compile.components.end();
  };
  return {.model = has("model"), .loss = has("loss"), .optimizer = true};
}

bool graphs_on_gpu(const config::JobConfig& config) {
  return parts_on_gpu(config).model && config.compile.graphs == "auto";
}

absl::StatusOr<mesh::Mesh> make_mesh(const config::ParallelismSection& parallelism, int world) {
  return mesh::Mesh::create(config::degrees_of(parallelism), world);
}

std::set<Axis> axes_of(const mesh::Mesh& mesh, const config::OptimizerSection& optimizer) {
  std::set<Axis> axes = {Axis::kPipeline, Axis::kReplicate, Axis::kContext, Axis::kTensor,
                         Axis::kBatch,    Axis::kLoss,      Axis::kFsdp,    Axis::kWorld};
  if (mesh.size(Axis::kExpert) > 1) axes.insert({Axis::kExpertFsdp, Axis::kExpert, Axis::kExpertTensor});
  if (config::uses_optimizer(optimizer, "Muon") || optimizer.qk_clip > 0) axes.insert(Axis::kHolders);
  return axes;
}

std::map<Axis, comm::Messages> messages_of(const config::ParallelismSection& parallelism) {
  std::map<Axis, comm::Messages> messages;
  if (parallelism.enable_async_tensor_parallel) messages[Axis::kTensor] = comm::Messages::kAll;
  if (parallelism.context_parallel_rotate_method == "alltoall") messages[Axis::kContext] = comm::Messages::kRing;
  return messages;
}

std::set<Axis> axes_apart(const config::JobConfig& config) {
  if (!has_tensorwise_scales(config) || !config::scales_over_all_ranks(config)) return {};
  return {Axis::kWorld, Axis::kLoss};
}

absl::Status check_communicators(const config::JobConfig& config, const mesh::Mesh& mesh, int rank) {
  if (config.resources.device != "cuda") return absl::OkStatus();
  const std::set<Axis> axes = axes_of(mesh, config.optimizer);
  const comm::CommSplitPlan plan = comm::comm_split_plan(
      comm::connection_plan(mesh, axes, messages_of(config.parallelism), axes_apart(config)).connections);
  const int count = comm::communicators_of(plan, rank);
  if (count <= comm::kMaxCommunicators) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parallelism: rank ", rank, " needs ", count, " NCCL communicators, and ", comm::kMaxCommunicators,
      " can have separate streams; enable_async_tensor_parallel needs one for each other tensor rank: disable it "
      "or lower tensor_parallel_degree (",
      mesh.size(Axis::kTensor), ")"));
}

absl::StatusOr<model::Model> build_model(const config::JobConfig& config, const models::ModelSpec& spec,
                                         int64_t seq_len, const comm::DeviceMesh& mesh) {
  TITAN_ASSIGN_OR_RETURN(model::Model model, model::build(spec, {.seq_len = config.training.seq_len,
                                                                 .max_logit_bytes = config::max_logit_bytes(config),
                                                                 .longest_row = seq_len}));
  const mesh::Mesh& shape = mesh.mesh();
  const config::ParallelismSection& parallelism = config.parallelism;
  model::ParallelOptions options;
  options.mesh = &mesh;
  options.sequence_parallel = parallelism.enable_sequence_parallel;
  options.loss_parallel = !parallelism.disable_loss_parallel;
  options.async_tensor_parallel = parallelism.enable_async_tensor_parallel;
  options.gather_operands = has_tensorwise_scales(config);
  options.rotate_method = parallelism.context_parallel_rotate_method;
  options.expert_dispatcher = parallelism.expert_parallel_dispatcher;
  options.force_load_balance = config.debug.moe_force_load_balance;
  if (model.parallelize) {
    TITAN_RETURN_IF_ERROR(model.parallelize(model, options));
  } else if (shape.size(Axis::kTensor) * shape.size(Axis::kContext) * shape.size(Axis::kExpert) > 1) {
    return absl::UnimplementedError(absl::StrCat("model.name: ", spec.name,
                                                 " has no tensor, context or expert parallelism; set their degrees "
                                                 "in [parallelism] to 1"));
  }
  TITAN_RETURN_IF_ERROR(assign_recipes(config, mesh, model));
  if (const auto adapters = config::adapters_of(config)) TITAN_RETURN_IF_ERROR(model::add_adapters(model, *adapters));
  return model;
}

namespace {

// One rank of each pipeline stage draws. The pipeline is the outermost axis.
bool draws(const comm::DeviceMesh& mesh) {
  const mesh::Mesh& shape = mesh.mesh();
  return mesh.rank() % (shape.size(Axis::kWorld) / shape.size(Axis::kPipeline)) == 0;
}

// Writes memory_budget_pareto/layers.3.svg and so on. A failed write does not stop the training.
auto draw_choices_into(const std::string& dump_folder) {
  return [folder = std::filesystem::path(dump_folder) / "memory_budget_pareto"](
             const std::string& block, const std::vector<models::ParetoPoint>& choices,
             const models::ParetoPoint& chosen) {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    std::ofstream(folder / (block + ".svg")) << models::draw_pareto_front(block, choices, chosen);
  };
}

at::ScalarType frozen_type(const config::JobConfig& config, const parallel::Precision& precision) {
  const std::string type = config::frozen_dtype(config);
  return type.empty() ? precision.param : type == "float32" ? at::kFloat : at::kBFloat16;
}

}  // namespace

absl::StatusOr<ShardingOptions> sharding_options(const config::JobConfig& config, const models::ModelSpec& spec,
                                                 const pipeline::PipelinePlan& plan, const comm::DeviceMesh& mesh) {
  ShardingOptions options;
  const config::TrainingSection& training = config.training;
  TITAN_ASSIGN_OR_RETURN(options.precision, parallel::make_precision(training.dtype, training.mixed_precision_param,
                                                                     training.mixed_precision_reduce));
  options.frozen = frozen_type(config, options.precision);
  options.reshard_after_forward = config.parallelism.fsdp_reshard_after_forward;
  const config::ActivationCheckpointSection& ac = config.activation_checkpoint;
  options.ac.mode = ac.mode;
  options.ac.selective_ac_option = ac.selective_ac_option;
  options.ac.per_op_sac_force_recompute_mm_shapes_by_fqns = ac.per_op_sac_force_recompute_mm_shapes_by_fqns;
  options.ac.memory_budget = ac.memory_budget;
  options.ac.layers = ac.layers;
  if (ac.visualize_memory_budget_pareto && draws(mesh)) options.ac.planned = draw_choices_into(config.job.dump_folder);
  options.cpu_offload = training.enable_cpu_offload;
  options.early_step = config.optimizer.early_step_in_backward;
  options.graphs.wanted = graphs_on_gpu(config);
  gather_in_float8(config, mesh, options);
  if (plan.schedule.ranks == 1) return options;
  options.pipeline = share_of(plan.schedule, plan.split, mesh.group(Axis::kPipeline).rank());
  options.pipeline->dim = spec.dim;
  if (config.parallelism.enable_sequence_parallel && !spec.flux) {  // Its tensor ranks have whole activations.
    options.pipeline->sequence_ranks = mesh.mesh().size(Axis::kTensor);
  }
  return options;
}

namespace {

parallel::LoadBalance balance_of(const std::optional<std::string>& balancer) {
  if (!balancer.has_value()) return parallel::LoadBalance::kNone;
  return *balancer == "ptrr" ? parallel::LoadBalance::kWork : parallel::LoadBalance::kHeadTail;
}

}  // namespace

MicrobatchOptions microbatch_options(const config::JobConfig& config, const models::ModelSpec& spec,
                                     const comm::DeviceMesh& mesh, at::Device device) {
  const config::ParallelismSection& parallelism = config.parallelism;
  MicrobatchOptions options;
  options.device = device;
  if (parallelism.pipeline_parallel_degree > 1) options.rows = parallelism.pipeline_parallel_microbatch_size;
  if (parallelism.context_parallel_degree > 1) {
    options.context = {.group = &mesh.group(Axis::kContext),
                       .balance = balance_of(parallelism.context_parallel_load_balancer),
                       .layers = model::attention_masks(spec),
                       .rotate = parallelism.context_parallel_rotate_method};
  }
  return options;
}

bool overlaps_pairs(const config::JobConfig& config) {
  const config::ParallelismSection& parallelism = config.parallelism;
  return parallelism.pipeline_parallel_expert_parallel_overlap && parallelism.pipeline_parallel_degree > 1 &&
         parallelism.expert_parallel_degree > 1 && parallelism.fsdp_reshard_after_forward != "always";
}

bool reports_loss(const pipeline::Schedule& schedule, const comm::DeviceMesh& mesh) {
  const mesh::Coordinate place = mesh.mesh().coordinate(mesh.rank());
  return place.tp == 0 && place.pp == schedule.rank_of(schedule.stages - 1);
}

absl::Status check_fd_limit(int world, int64_t descriptors) {
  constexpr int64_t kConnections = 2, kOwn = 128;
  const int64_t needed = kConnections * world + kOwn;
  if (descriptors == 0 || descriptors >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(  // ResourceExhausted would mean a full disk in a rank.
      absl::StrCat("rank 0 hosts the store of ", world, " ranks and needs ", needed, " open files, but its limit is ",
                   descriptors,
                   ": raise the hard limit on its node (LimitNOFILE of titan-worker's unit, or ulimit -Hn)"));
}

}  // namespace titan::runtime
