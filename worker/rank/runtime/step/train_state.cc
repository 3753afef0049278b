#include "worker/rank/runtime/step/train_state.h"

#include <algorithm>
#include <future>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/s3/object_files.h"
#include "common/io/storage/fence.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/model/vision/load_tower.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/frozen_base.h"
#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {

using checkpoint::LoadResult;
using rank_protocol::kExitBadConfig;
using rank_protocol::kExitStorage;
using rank_protocol::kExitUserError;
using rank_protocol::Phase;

namespace {

absl::StatusOr<std::unique_ptr<data::BatchSource>> open_data(const RankContext& context, model::Objective& objective,
                                                             const BatchPlan& plan, const model::RowsBefore& before) {
  const mesh::Mesh& mesh = context.mesh->mesh();
  return objective.open_training(
      context.config, {mesh.index(context.rank, mesh::Axis::kBatch), mesh.size(mesh::Axis::kBatch), plan.local_batch,
                       plan.global_batch, before, context.spans});
}

// Results of reading into the model: from the job's own steps or its initial weights, and into the model below
// adapters.
struct WeightsRead {
  LoadResult job, base;
  absl::Status status;
};

WeightsRead read_weights(const Built& built, std::vector<checkpoint::Slice>& slices,
                         checkpoint::Checkpointer* checkpointer) {
  WeightsRead read;
  if (checkpointer == nullptr) return read;
  const auto part = [&](std::vector<checkpoint::Slice>& into, checkpoint::StatePart which, LoadResult& out) {
    absl::StatusOr<LoadResult> result = checkpointer->load(into, which);
    read.status = result.status();
    if (result.ok()) out = *std::move(result);
  };
  part(slices, built.adapters ? checkpoint::StatePart::kResumed : checkpoint::StatePart::kAll, read.job);
  std::vector<checkpoint::Slice> beneath = built.model->base_slices();
  if (built.adapters && read.status.ok()) part(beneath, checkpoint::StatePart::kInitial, read.base);
  return read;
}

void check_read(const absl::Status& status) {
  // For a folder in an object store, which has a separate fence.
  if (storage::is_fenced(status)) check(status, rank_protocol::kExitFenced, "FENCED");
  if (storage::is_in_use(status)) check(status, rank_protocol::kExitFenced, "DUMP_FOLDER_IN_USE");
  if (absl::IsAborted(status)) check(status, kExitStorage, "CHECKPOINT_STORE");
  check(status, kExitUserError, checkpoint::checkpoints_are_gone(status) ? "CHECKPOINTS_GONE" : "CHECKPOINT");
}

// Steps that do not record the type of their optimizer states were saved in training.dtype.
void warn_state_conversion(const RankContext& context, const LoadResult& read) {
  const std::vector<std::string>& excluded = context.config.checkpoint.exclude_from_loading;
  const auto excludes = [&](const char* what) {
    return std::find(excluded.begin(), excluded.end(), what) != excluded.end();
  };
  if (context.rank != 0 || excludes("optimizer") || excludes("train_state")) return;
  const std::string saved = read.train_state.value("optimizer_states", context.config.training.dtype);
  const std::string notice = conversion_notice(saved, context.config);
  if (!notice.empty()) context.reporter->warning(notice);
}

void restore_state(const RankContext& context, const LoadResult& read, optim::Optimizer& optimizer,
                   LoadedState& loaded) {
  loaded.step = loaded.schedule_step = read.step;
  loaded.tokens_seen = read.train_state.value("ntokens_seen", int64_t{0});
  if (read.model_only) return;
  warn_state_conversion(context, read);
  if (read.model_loaded) {
    const auto seed = read.train_state.find("seed");
    loaded.seed = seed == read.train_state.end() ? std::nullopt : std::optional(seed->get<int64_t>());
  }
  // If no seed is set, every start draws one. Without the first one's, updates after a resume would differ.
  loaded.rounding_seed = read.train_state.value("rounding_seed", loaded.seed.value_or(loaded.rounding_seed));
  optimizer.set_seed(static_cast<uint64_t>(loaded.rounding_seed));
  const auto schedule = read.train_state.find("lr_scheduler");
  loaded.schedule_step = schedule == read.train_state.end() ? 0 : schedule->value("last_epoch", loaded.step);
}

void draw(const RankContext& context, const LoadedState& loaded, ShardedModel& model, ShardedModel::Which which) {
  draw_weights(context, model, loaded.seed.value_or(context.config.debug.seed.value_or(0)), which);
}

// Draws what was not loaded, and checks that adapters resume with the model on which they were trained.
void settle_base(const RankContext& context, const WeightsRead& read, Built& built, LoadedState& loaded) {
  if (!read.job.model_loaded) draw(context, loaded, *built.model, ShardedModel::Which::kTrained);
  if (!read.base.model_loaded) {
    draw(context, loaded, *built.model, ShardedModel::Which::kFrozen);
    if (context.rank == 0) {
      context.reporter->warning(
          "the base model of the adapters has random weights: set checkpoint.initial_load_path or "
          "checkpoint.initial_load_in_hf (both need checkpoint.enable)");
    }
  }
  loaded.base = describe_base(digest_of_base(*built.model, *context.mesh), read.base.path, *built.adapters);
  const auto saved = read.job.train_state.find("lora");
  if (saved != read.job.train_state.end()) check(check_base(*saved, loaded.base), kExitUserError, "LORA_BASE");
}

// Reads the vision tower of a new job from its separate folder.
void load_vision_tower(const RankContext& context, const LoadResult& read, Built& built) {
  const std::optional<std::string>& path = context.config.checkpoint.initial_load_vision_path;
  if (!path || !built.spec.vision || read.source == checkpoint::Source::kCheckpoint) return;
  const auto notes = model::load_tower(s3::all_files(), *path, *built.spec.vision, built.slices);
  check(annotate(notes.status(), "checkpoint.initial_load_vision_path"), kExitUserError, "CHECKPOINT");
  if (context.rank != 0) return;
  log_line(absl::StrCat("The vision tower has the weights of ", *path));
  for (const std::string& note : *notes) context.reporter->warning(note);
}

// The job's own checkpoints take precedence, which may surprise a user who names other weights. A later attempt of a
// job is expected to resume.
void warn_unused_initial_load(const RankContext& context, const LoadResult& read) {
  const config::CheckpointSection& keys = context.config.checkpoint;
  if (context.rank != 0 || read.source != checkpoint::Source::kCheckpoint) return;
  const bool weights = keys.initial_load_in_hf || keys.initial_load_path;
  if (keys.load_step >= 0 || (!weights && !keys.initial_load_vision_path)) return;
  const char* const key = keys.initial_load_in_hf  ? "checkpoint.initial_load_in_hf"
                          : keys.initial_load_path ? "checkpoint.initial_load_path"
                                                   : "checkpoint.initial_load_vision_path";
  const std::string text = absl::StrCat(key, " is not used: training resumes from ", read.path,
                                        "; to start from other weights, use another job.dump_folder");
  if (context.attempt > 1) return log_line(text);
  context.reporter->warning(text);
}

void warn_other_row_length(const RankContext& context, const LoadResult& read) {
  const int64_t wanted = context.config.training.seq_len;
  const int64_t saved = read.train_state.value("seq_len", wanted);
  if (saved == wanted || context.rank != 0) return;
  context.reporter->warning(absl::StrCat("the checkpoint was trained with rows of ", counted(saved, "token"),
                                         "; training continues with training.seq_len = ", wanted));
}

// Plans the schedule for the batch on this mesh, which may differ from the configuration's if the job resumes from
// another mesh.
void replan_pipeline(const config::JobConfig& config, const BatchPlan& batch, Built& built) {
  if (built.pipeline.ranks == 1 || batch.local_batch == config.training.local_batch_size) return;
  config::JobConfig job = config;
  job.training.local_batch_size = batch.local_batch;
  built.pipeline =
      value(config::pipeline_plan(job, models::block_names(built.spec)), kExitBadConfig, "PIPELINE").schedule;
}

// Settles the batch that the job keeps, and moves the loader to its position.
void settle_data(const RankContext& context, const LoadResult& read, Built& built, LoadedState& loaded) {
  const BatchPlan configured = loaded.batch_plan;
  loaded.batch_plan = resumed_batch(context, built.spec, read.train_state, configured);
  const model::RowsBefore before = rows_before(context.config, read, loaded.batch_plan);
  if (loaded.batch_plan != configured || before.rows != before.steps * loaded.batch_plan.global_batch)
    loaded.loader = value(open_data(context, *built.objective, loaded.batch_plan, before), kExitUserError, "DATA");
  replan_pipeline(context.config, loaded.batch_plan, built);
  restore_data(context, read, loaded.batch_plan, *loaded.loader);
}

}  // namespace

LoadedState load(RankContext& context, Built& built, checkpoint::Checkpointer* checkpointer) {
  context.reporter->enter_start_phase(Phase::kLoad);
  const std::optional<int64_t>& seed = context.config.debug.seed;
  LoadedState loaded{.seed = seed, .rounding_seed = seed.value_or(0)};
  loaded.batch_plan = value(configured_batch(context, built.spec), kExitBadConfig, "BATCH_SIZE");
  // Data, above all the tokenizer, is opened concurrently with reading the checkpoint.
  std::future<absl::StatusOr<std::unique_ptr<data::BatchSource>>> opening =
      std::async(std::launch::async, [&context, &built, plan = loaded.batch_plan] {
        return open_data(context, *built.objective, plan, model::RowsBefore());
      });
  // Loaded weights may lack rows of a larger vocabulary, which then keep these values.
  if (context.config.model.overrides.vocab_size)
    built.model->init_weights(static_cast<uint64_t>(seed.value_or(0)), ShardedModel::Which::kAll);
  const WeightsRead read = read_weights(built, built.slices, checkpointer);
  loaded.loader = value(opening.get(), kExitUserError, "DATA");
  if (context.rank == 0) {
    for (const std::string& note : built.objective->notes(context.config)) context.reporter->warning(note);
  }
  check_read(read.status);
  if (!built.adapters && !read.job.model_loaded) draw(context, loaded, *built.model, ShardedModel::Which::kAll);
  load_vision_tower(context, read.job, built);
  restore_state(context, read.job, *built.optimizer, loaded);
  if (built.adapters) {
    settle_base(context, read, built, loaded);
  } else {
    warn_unused_initial_load(context, read.job);
  }
  loaded.load_balance_coeff = settle_balance(context, read.job, built);
  warn_other_row_length(context, read.job);
  settle_data(context, read.job, built, loaded);
  const LoadResult& origin = built.adapters && read.job.source == checkpoint::Source::kFresh ? read.base : read.job;
  loaded.source = origin.source;
  loaded.path = origin.path;
  return loaded;
}

void report_loaded(RankContext& context, const LoadedState& loaded) {
  context.reporter->finished_step(loaded.step, absl::ZeroDuration());
  context.reporter->event(rank_protocol::event::kLoaded,
                          {{"step", loaded.step}, {"source", checkpoint::name(loaded.source)}, {"path", loaded.path}});
}

void draw_weights(const RankContext& context, ShardedModel& model, int64_t seed, ShardedModel::Which which) {
  model.init_weights(static_cast<uint64_t>(seed), which);
  if (context.rank == 0) log_line(absl::StrCat("Initial weights are drawn with debug.seed = ", seed));
}

namespace {

// Returns -1 if there is none.
int64_t first_layer_with_experts(const models::ModelSpec& spec) {
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (spec.layer_has_experts(layer)) return layer;
  }
  return -1;
}

// Returns whether Hugging Face's form of the model can hold the biases.
bool exports_biases(const Built& built) {
  const int64_t layer = first_layer_with_experts(built.spec);
  if (built.hf_mapper == nullptr || layer < 0) return true;
  const auto layouts = built.hf_mapper->layouts(absl::StrCat("layers.", layer, ".moe.expert_bias"));
  return !layouts.ok() || !layouts->empty();
}

void log_balance(const RankContext& context, const Built& built, double coefficient) {
  const std::string key = absl::StrCat("model.load_balance_coeff = ", coefficient);
  if (coefficient == 0) return log_line(absl::StrCat("The biases that balance the experts do not change (", key, ")"));
  log_line(absl::StrCat("Each step moves the biases that balance the experts (", key, ")"));
  if (exports_biases(built)) return;
  context.reporter->warning(absl::StrCat(
      "training moves the biases that balance the experts (", key, "), but Hugging Face weights of ", built.spec.name,
      " cannot store them: an export differs from the trained model; model.load_balance_coeff = 0 keeps "
      "them unchanged"));
}

}  // namespace

double settle_balance(const RankContext& context, const checkpoint::LoadResult& read, Built& built) {
  if (!built.balance) return 0;
  const std::optional<double>& of_weights = read.load_balance_coeff;
  const bool resumed = read.source == checkpoint::Source::kCheckpoint;
  double coefficient = built.spec.moe->load_balance_coeff;  // The key's value, if it is set.
  if (!context.config.model.load_balance_coeff && of_weights && (resumed || *of_weights == 0))
    coefficient = *of_weights;
  if (built.adapters) coefficient = 0;  // The frozen model includes the biases.
  built.balance->set_coefficient(coefficient);
  if (context.rank == 0 && !built.adapters) log_balance(context, built, coefficient);
  return coefficient;
}

checkpoint::TrainState train_state(const RankContext& context, const Built& built, const LoadedState& start,
                                   const Progress& progress) {
  checkpoint::TrainState state;
  const config::JobConfig& config = context.config;
  const std::string& order = config.training.dataloader.order;
  nlohmann::json dataloader = {{"order", order}, {"dp_size", context.mesh->mesh().size(mesh::Axis::kBatch)}};
  if (order == "global") {
    dataloader["cursor"] = start.loader->state();
  } else {
    state.per_rank = start.loader->state();
  }
  state.shared = {{"step", progress.step},
                  {"ntokens_seen", progress.tokens_seen},
                  {"global_batch", start.batch_plan.global_batch},
                  {"seq_len", config.training.seq_len},
                  {"optimizer_states", state_dtype(config)},
                  {"lr_scheduler", {{"last_epoch", progress.schedule_step}}},
                  {"dataloader", std::move(dataloader)}};
  if (built.balance) state.shared["load_balance_coeff"] = start.load_balance_coeff;
  if (start.seed) state.shared["seed"] = *start.seed;
  if (config.optimizer.stochastic_rounding) state.shared["rounding_seed"] = start.rounding_seed;
  if (built.adapters) state.shared["lora"] = start.base;
  return state;
}

}  // namespace titan::runtime
