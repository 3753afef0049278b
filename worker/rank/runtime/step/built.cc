#include "worker/rank/runtime/step/built.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/optim/lr_schedule.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/job_model.h"
#include "worker/rank/runtime/step/low_precision_setup.h"
#include "worker/rank/runtime/step/optimizer_setup.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {

using rank_protocol::kExitBadConfig;
using rank_protocol::kExitUserError;

namespace {

models::ModelSpec spec_of(const config::JobConfig& config) {
  return value(model::find_spec(config.model, config.experimental.custom_import), kExitBadConfig, "MODEL");
}

bool needs_hf_names(const config::CheckpointSection& keys) {
  return keys.enable && (keys.initial_load_in_hf || keys.last_save_in_hf);
}

void join_mesh(RankContext& context) {
  if (context.joining_mesh.valid()) context.mesh = context.joining_mesh.get();
}

void log_connections(const RankContext& context) {
  if (context.rank != 0) return;
  if (context.world > 1 && context.device->torch_device().is_cuda()) {
    log_line(absl::StrFormat("NCCL: %d groups of each rank were opened in %.2f s", context.mesh->connections(),
                             absl::ToDoubleSeconds(context.joining_took)));
  }
  if (context.mesh->shares_memory()) log_line("collectives and messages use memory that the ranks share");
}

std::unique_ptr<ShardedModel> build_sharded(RankContext& context, const Built& built,
                                            const pipeline::PipelinePlan& plan, int64_t longest) {
  const config::JobConfig& config = context.config;
  const comm::DeviceMesh& mesh = *context.mesh;
  model::Model model = value(build_model(config, built.spec, longest, mesh), kExitBadConfig, "MODEL");
  if (context.rank == 0) {
    for (const std::string& line : conversion_lines(config, model, context.device->torch_device())) log_line(line);
  }
  ShardingOptions sharding = value(sharding_options(config, built.spec, plan, mesh), kExitBadConfig, "SHARDING");
  if (context.rank == 0) {
    sharding.graphs.say = [&context](const std::string& text) { context.reporter->warning(text); };
  }
  return value(ShardedModel::create(std::move(model), sharding, mesh, *context.device), kExitBadConfig, "MODEL");
}

void build_balance(const RankContext& context, Built& built) {
  if (!built.spec.moe && context.config.model.load_balance_coeff) {
    throw Failure(
        kExitBadConfig, "MODEL",
        absl::StrCat("model.load_balance_coeff: ", built.spec.name, " ", built.spec.flavor, " has no experts"));
  }
  if (!built.spec.moe) return;
  built.balance.emplace(built.model->blocks(), /*coefficient=*/0, *context.mesh, context.device->torch_device());
}

// Builds the optimizer and what its steps need.
void build_updates(const RankContext& context, Built& built) {
  const config::JobConfig& config = context.config;
  built.rules = value(update_rules_of(config.optimizer, *built.model), kExitBadConfig, "PARAM_GROUPS");
  built.optimizer = build_optimizer(config, built.rules, *built.model, *context.mesh, *context.device);
  if (config.optimizer.qk_clip > 0) {
    built.qk_clip =
        value(parallel::QkClip::create(built.model->blocks(), built.model->parameters(), config.optimizer.qk_clip,
                                       *context.mesh, context.device->torch_device()),
              kExitBadConfig, "QK_CLIP");
  }
  built.schedule = value(optim::LrSchedule::create(optim::schedule_options(config)), kExitBadConfig, "LR_SCHEDULER");
}

void report_built(const RankContext& context, const Built& built) {
  if (context.rank != 0) return;
  const config::JobConfig& config = context.config;
  if (!config::resolve_model(config.model).ok()) {  // A library's model, which only ranks know.
    for (const std::string& warning : config::length_warnings(config, built.spec)) context.reporter->warning(warning);
  }
  if (config.optimizer.early_step_in_backward) {
    context.reporter->warning(
        "training.max_norm has no effect with optimizer.early_step_in_backward: weights are updated before the norm of "
        "all gradients is known");
  }
  for (const std::string& warning : built.schedule->warnings()) context.reporter->warning(warning);
  log_line(absl::StrCat("Model ", built.spec.name, " ", built.spec.flavor,
                        " size: ", models::parameter_count(built.spec), " total parameters"));
  for (const std::string& line : describe_rules(built.rules)) log_line(line);
  if (!built.adapters) return;
  int64_t trained = 0;
  for (const models::ParameterSpec& tensor : models::adapter_tensors(built.spec, *built.adapters))
    trained += tensor.numel();
  log_line(absl::StrCat("Adapters of rank ", built.adapters->rank, ": ", trained, " parameters are trained"));
}

}  // namespace

Built build(RankContext& context) {
  const config::JobConfig& config = context.config;
  Built built;
  built.spec = spec_of(config);
  const pipeline::PipelinePlan plan =
      value(config::pipeline_plan(config, models::block_names(built.spec)), kExitBadConfig, "PIPELINE");
  built.pipeline = plan.schedule;
  built.objective = model::make_objective(built.spec);
  join_mesh(context);
  check(built.objective->prepare(config, {*context.mesh, context.device->torch_device()}), kExitUserError, "OBJECTIVE");
  built.spec = start_spec(context, built.spec);
  if (auto mapper = model::make_hf_mapper(built.spec, config.training.seq_len); mapper.ok()) {
    built.hf_mapper = *std::move(mapper);
  } else if (absl::IsFailedPrecondition(mapper.status()) && needs_hf_names(config.checkpoint)) {
    check(mapper.status(), kExitBadConfig, "MODEL");
  }
  log_connections(context);
  built.model = build_sharded(context, built, plan, built.objective->longest_row(config));
  built.adapters = config::adapters_of(config);
  build_balance(context, built);
  built.microbatch_options = microbatch_options(config, built.spec, *context.mesh, context.device->torch_device());
  build_updates(context, built);
  built.slices = built.model->slices(built.optimizer.get());
  report_built(context, built);
  return built;
}

}  // namespace titan::runtime
