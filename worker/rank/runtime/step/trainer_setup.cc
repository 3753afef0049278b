// How a Trainer comes to its first step: building, outputs, loading.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/counted.h"
#include "common/io/storage/fence.h"
#include "common/io/tokenizer_files/not_applied.h"
#include "common/plan/config/chosen_model.h"
#include "common/plan/config/json.h"
#include "common/plan/config/lora.h"
#include "common/plan/config/mesh.h"
#include "common/plan/config/pipeline.h"
#include "common/plan/models/sizes.h"
#include "nlohmann/json.hpp"
#include "worker/rank/model/hf_mapper.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/nn/product_speed.h"
#include "worker/rank/optim/lr_schedule_options.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/memory/device_memory.h"
#include "worker/rank/runtime/metrics_out/device_peak.h"
#include "worker/rank/runtime/step/data_setup.h"
#include "worker/rank/runtime/step/frozen_base.h"
#include "worker/rank/runtime/step/low_precision_setup.h"
#include "worker/rank/runtime/step/optimizer_setup.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/start_spec.h"
#include "worker/rank/runtime/step/trainer.h"

namespace titan::runtime {

using rank_protocol::kExitBadConfig;
using rank_protocol::kExitStorage;
using rank_protocol::kExitUserError;
using rank_protocol::Phase;
namespace event = rank_protocol::event;

namespace {

// A log file or a pipe would keep the escape codes, and a terminal that is dumb would show them.
bool console_takes_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  const bool is_dumb = kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb";
  return isatty(STDOUT_FILENO) != 0 && !is_dumb && (no_color == nullptr || *no_color == '\0');
}

// What the job says, else what is known of a GPU; a CPU shows what it can do, here and now.
std::optional<double> peak_of_device(const RankContext& context, const std::string& device_name) {
  if (context.config.metrics.device_peak_tflops) return *context.config.metrics.device_peak_tflops * 1e12;
  const config::Training& training = context.config.training;
  const std::string& dtype = training.dtype == "float64" ? training.dtype : training.mixed_precision_param;
  if (!context.device->torch_device().is_cpu()) return device_peak(device_name, dtype);
  if (!context.leads_process) return std::nullopt;  // Prints nothing, and the ranks beside it are at work.
  const parallel::Precision precision = value(
      parallel::make_precision(training.dtype, dtype, training.mixed_precision_reduce), kExitBadConfig, "PRECISION");
  const double flops = nn::product_speed(precision.param);
  if (context.rank == 0) {
    log_line(absl::StrFormat("mfu is a share of the %.3g TFLOP/s that products in %s reach here, measured just now",
                             flops / 1e12, dtype));
  }
  return flops;
}

MetricsSetup metrics_setup(const RankContext& context, const models::ModelSpec& spec) {
  MetricsSetup setup;
  setup.config = context.config.metrics;
  if (!console_takes_colour()) setup.config.disable_color_printing = true;
  setup.dump_folder = context.config.job.dump_folder;
  setup.job_uid = context.job_uid;
  setup.attempt = context.attempt;
  setup.rank = context.rank;
  setup.metrics_rank = 0;
  const config::Parallelism& degrees = context.config.parallelism;
  setup.non_data_parallel_size =
      degrees.context_parallel_degree * degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree;
  const int64_t seq_len = context.config.training.seq_len;
  const auto adapters = config::adapters_of(context.config);
  setup.flops_per_token = static_cast<double>(adapters ? models::adapter_flops_per_token(spec, *adapters, seq_len)
                                                       : models::flops_per_token(spec, seq_len));
  setup.clock = context.clock;
  setup.time_in_phase = [&context](rank_protocol::Phase phase) { return context.reporter->time_in(phase); };
  setup.memory = make_memory_monitor(*context.device);
  setup.device_peak = peak_of_device(context, setup.memory ? setup.memory->device_name() : "");
  if (!context.leads_process) setup.console = [](const std::string&) {};
  return setup;
}

// Events say it to the node; this says it to whoever reads the log.
void print_trouble(const std::string& kind, const nlohmann::json& members) {
  std::string message;
  if (kind == event::kRejected) message = absl::StrCat("checkpoint ", members.value("path", ""), " is not used");
  if (kind == event::kCheckpointFailed) message = absl::StrCat("step ", members.value("step", 0), " was not saved");
  const std::string why = members.value(kind == event::kWarning ? "message" : "reason", "");
  if (kind == event::kWarning) std::fprintf(stderr, "warning: %s\n", why.c_str());
  if (!message.empty()) std::fprintf(stderr, "warning: %s: %s\n", message.c_str(), why.c_str());
}

// Traces may be asked for of who has its process's profiler.
std::optional<TraceDesk> desk_of(const RankContext& context) {
  if (!context.leads_process) return std::nullopt;
  return TraceDesk(context.reporter->trace_words(), context.run_folder, context.rank);
}

TraceOwner owner_of_traces(const RankContext& context) {
  return {.rank = context.rank,
          .world = context.world,
          .backend = context.device->torch_device().is_cuda() ? "nccl" : "gloo"};
}

MemorySnapshots::Setup snapshots_setup(const RankContext& context) {
  return {.folder =
              storage::join_path(context.config.job.dump_folder, context.config.profiling.save_memory_snapshot_folder),
          .rank = context.rank,
          .writes = context.leads_process,
          .say = [](const std::string& text) { log_line(text); },
          .warn = [&context](const std::string& text) { context.reporter->warning(text); }};
}

}  // namespace

Trainer::Trainer(RankContext& context)
    : context_(context),
      config_(context.config),
      tracer_(config_.profiling, absl::StrCat(config_.job.dump_folder, "/", config_.profiling.save_traces_folder),
              owner_of_traces(context), context.leads_process, desk_of(context), context.spans),
      memory_snapshots_(config_.profiling, snapshots_setup(context), *context.device),
      seed_(context.config.debug.seed),
      rounding_seed_(context.config.debug.seed.value_or(0)) {
  build();
  open_outputs();
}

Trainer::~Trainer() = default;

void Trainer::build() {
  spec_ = config::with_choices(
      value(model::find_spec(config_.model.name, config_.model.flavor, config_.experimental.custom_import),
            kExitBadConfig, "MODEL"),
      config_.model);
  const pipeline::Plan plan = value(config::pipeline_plan(config_, spec_.n_layers), kExitBadConfig, "PIPELINE");
  pipeline_ = plan.schedule;
  int64_t seq_len = config_.training.seq_len;
  if (config_.validation.enable) seq_len = std::max(seq_len, config_.validation.seq_len);
  samples_ = value(Samples::create(config_), kExitUserError, "SAMPLE_PROMPTS");
  if (samples_) seq_len = std::max(seq_len, samples_->longest());
  if (context_.joining_mesh.valid()) context_.mesh = context_.joining_mesh.get();
  spec_ = start_spec(context_, spec_);
  if (auto mapper = model::make_hf_mapper(spec_, config_.training.seq_len); mapper.ok())
    hf_mapper_ = *std::move(mapper);
  if (context_.rank == 0 && context_.world > 1 && context_.device->torch_device().is_cuda()) {
    log_line(absl::StrFormat("NCCL: %d groups of each rank were opened in %.2f s", context_.mesh->connections(),
                             absl::ToDoubleSeconds(context_.joining_took)));
  }
  if (context_.rank == 0 && context_.mesh->shares_memory())
    log_line("collectives and messages go through memory that the ranks share");
  const comm::DeviceMesh& mesh = *context_.mesh;
  reads_late_ = config_.training.read_step == "late" ||
                (config_.training.read_step == "auto" && context_.device->torch_device().is_cuda());
  model::Model model = value(build_model(config_, spec_, seq_len, mesh), kExitBadConfig, "MODEL");
  if (context_.rank == 0) {
    for (const std::string& line : conversion_lines(config_, model, context_.device->torch_device())) log_line(line);
  }
  ShardingOptions sharding = value(sharding_options(config_, spec_, plan, mesh), kExitBadConfig, "SHARDING");
  if (context_.rank == 0) {
    sharding.graphs.say = [this](const std::string& text) { context_.reporter->warning(text); };
  }
  model_ = value(ShardedModel::create(std::move(model), sharding, mesh, *context_.device), kExitBadConfig, "MODEL");
  adapters_ = config::adapters_of(config_);
  if (context_.rank == 0 && !config::chosen_model(config_.model).ok()) {  // Of a library: only ranks know its models.
    for (const std::string& warning : config::length_warnings(config_, spec_)) context_.reporter->warning(warning);
  }
  if (!spec_.moe && config_.model.load_balance_coeff) {
    throw Failure(kExitBadConfig, "MODEL",
                  absl::StrCat("model.load_balance_coeff: ", spec_.name, " ", spec_.flavor, " has no experts"));
  }
  if (spec_.moe) {  // settle_balance() knows the coefficient.
    balance_.emplace(model_->blocks(), /*coefficient=*/0, mesh, context_.device->torch_device());
  }
  executor_ = std::make_unique<Executor>(model_->stages(), &mesh.group(mesh::Axis::kPipeline),
                                         [this](const pipeline::Action& action) { begins(action); });
  if (overlaps_pairs(config_)) executor_->overlap_pairs();
  microbatch_options_ = microbatch_options(config_, spec_, mesh, context_.device->torch_device());
  rules_ = value(update_rules_of(config_.optimizer, *model_), kExitBadConfig, "PARAM_GROUPS");
  optimizer_ = build_optimizer(config_, rules_, *model_, mesh, *context_.device);
  if (config_.optimizer.qk_clip > 0) {
    qk_clip_ = value(parallel::QkClip::create(model_->blocks(), model_->parameters(), config_.optimizer.qk_clip, mesh,
                                              context_.device->torch_device()),
                     kExitBadConfig, "QK_CLIP");
  }
  if (sharding.early_step) {
    if (context_.rank == 0) {
      context_.reporter->warning(
          "training.max_norm has no effect with optimizer.early_step_in_backward: weights are updated before the norm "
          "of "
          "all gradients is known");
    }
    model_->update_early([this](const parallel::ShardUnit& unit, size_t first_slot, size_t count) {
      update_early(unit, first_slot, count);
    });
  }
  schedule_ = value(optim::LrSchedule::create(optim::schedule_options(config_)), kExitBadConfig, "LR_SCHEDULER");
  if (context_.rank == 0) {
    for (const std::string& warning : schedule_->warnings()) context_.reporter->warning(warning);
    log_line(absl::StrCat("Model ", spec_.name, " ", spec_.flavor, " size: ", models::parameter_count(spec_),
                          " total parameters"));
    for (const std::string& line : describe_rules(rules_)) log_line(line);
    if (adapters_) {
      int64_t trained = 0;
      for (const models::Tensor& tensor : models::adapter_tensors(spec_, *adapters_)) trained += tensor.numel();
      log_line(absl::StrCat("Adapters of rank ", adapters_->rank, ": ", trained, " parameters are trained"));
    }
  }
  slices_ = model_->slices(optimizer_.get());
}

void Trainer::open_outputs() {
  metrics_ = value(MetricsLogger::create(metrics_setup(context_, spec_)), kExitStorage, "METRICS_OUTPUT");
  if (!config_.checkpoint.enable && !config_.checkpoint.create_seed_checkpoint) return;
  checkpoint::Setup setup = start_setup(context_);
  setup.model = spec_;
  setup.job_config = config::to_json(config_);
  setup.store = context_.store;
  setup.peer_start = absl::Seconds(config_.comm.init_timeout_seconds);
  // A seed checkpoint is all that its run is for.
  setup.failed_saves_allowed = config_.checkpoint.create_seed_checkpoint ? 1 : config_.checkpoint.max_failed_saves;
  setup.still_trying = [this] { context_.reporter->enter(Phase::kCheckpoint); };
  setup.patience_after_stop = [this]() -> std::optional<absl::Duration> {
    const bool signalled = context_.stop_signal != nullptr && context_.stop_signal->load();
    if (!signalled && !context_.reporter->stop_asked()) return std::nullopt;
    return time_after_stop();
  };
  setup.events = [this](const char* kind, nlohmann::json members) {
    print_trouble(kind, members);
    context_.reporter->event(kind, std::move(members));
  };
  setup.hf = hf_mapper_.get();
  setup.spans = context_.spans;
  checkpointer_ = value(checkpoint::Checkpointer::create(std::move(setup)), kExitBadConfig, "CHECKPOINT");
}

void Trainer::load() {
  context_.reporter->enter_start_phase(Phase::kLoad);
  // Opening data (the tokenizer above all) goes on beside the checkpoint.
  const int dp_rank = context_.mesh->mesh().index(context_.rank, mesh::Axis::kBatch);
  const int dp_size = context_.mesh->mesh().size(mesh::Axis::kBatch);
  const config::Training& training = config_.training;
  batch_plan_ = value(plan_rows(training.global_batch_size, dp_size), kExitBadConfig, "BATCH_SIZE");
  const auto open = [this, dp_rank, dp_size](const BatchPlan& plan, const RowsBefore& before) {
    return open_training_loader(config_,
                                {dp_rank, dp_size, plan.local_batch, plan.global_batch, before, context_.spans});
  };
  std::future<absl::StatusOr<std::unique_ptr<data::Loader>>> opening =
      std::async(std::launch::async, open, batch_plan_, RowsBefore());

  checkpoint::LoadResult loaded, base;
  absl::Status load_status;
  const auto load_part = [&](std::vector<checkpoint::Slice>& slices, checkpoint::Part part,
                             checkpoint::LoadResult& into) {
    absl::StatusOr<checkpoint::LoadResult> result = checkpointer_->load(slices, part);
    load_status = result.status();
    if (result.ok()) into = *std::move(result);
  };
  if (checkpointer_) {
    load_part(slices_, adapters_ ? checkpoint::Part::kResumed : checkpoint::Part::kAll, loaded);
    std::vector<checkpoint::Slice> beneath = model_->base_slices();
    if (adapters_ && load_status.ok()) load_part(beneath, checkpoint::Part::kInitial, base);
  }
  loader_ = value(opening.get(), kExitUserError, "DATA");
  if (context_.rank == 0) {
    for (const std::string& note : tokenizer_files::not_applied(config_.model.hf_assets_path))
      context_.reporter->warning(note);
  }
  // Of a folder in an object store, which has a fence of its own.
  if (storage::is_fenced(load_status)) check(load_status, rank_protocol::kExitFenced, "FENCED");
  if (storage::is_in_use(load_status)) check(load_status, rank_protocol::kExitFenced, "DUMP_FOLDER_IN_USE");
  if (absl::IsAborted(load_status)) check(load_status, kExitStorage, "CHECKPOINT_STORE");
  check(load_status, kExitUserError, checkpoint::are_gone(load_status) ? "CHECKPOINTS_GONE" : "CHECKPOINT");
  if (adapters_) {
    restore_state(loaded);
    settle_base(loaded, base);
  } else {
    if (!loaded.model_loaded) draw_weights();
    restore_state(loaded);
  }
  tell_unused_start(loaded);
  settle_balance(loaded);
  const int64_t seq_len = loaded.train_state.value("seq_len", training.seq_len);
  if (seq_len != training.seq_len && context_.rank == 0) {
    context_.reporter->warning(absl::StrCat("the checkpoint was trained with rows of ", counted(seq_len, "token"),
                                            "; training goes on with training.seq_len = ", training.seq_len));
  }
  const BatchPlan planned = batch_plan_;
  settle_batch(loaded, dp_size);
  const RowsBefore before = rows_before(loaded);
  if (batch_plan_ != planned || before.rows != before.steps * batch_plan_.global_batch)
    loader_ = value(open(batch_plan_, before), kExitUserError, "DATA");
  if (microbatch_options_.document_end && loader_->end_of_document()) {
    microbatch_options_.document_end = *loader_->end_of_document();  // The model's own is for lack of one.
  }
  plan_work();
  restore_data(loaded);
  if (config_.validation.enable) {
    validator_ = std::make_unique<Validator>(
        value(open_validation_loader(config_, {dp_rank, dp_size, config_.validation.local_batch_size,
                                               batch_plan_.global_batch, RowsBefore(), context_.spans}),
              kExitUserError, "VALIDATION_DATA"),
        config_.validation.steps, microbatch_options_, pipeline_);
  }
  metrics_->start_after(step_);
  context_.reporter->finished_step(step_, absl::ZeroDuration());
  const checkpoint::LoadResult& told = adapters_ && loaded.source == checkpoint::Source::kFresh ? base : loaded;
  context_.reporter->event(rank_protocol::event::kLoaded,
                           {{"step", step_}, {"source", checkpoint::name(told.source)}, {"path", told.path}});
}

// Draws what was not loaded, and makes sure that adapters go on with the model that they were trained on.
void Trainer::settle_base(const checkpoint::LoadResult& loaded, const checkpoint::LoadResult& base) {
  if (!loaded.model_loaded) draw_weights(ShardedModel::Which::kTrained);
  if (!base.model_loaded) {
    draw_weights(ShardedModel::Which::kFrozen);
    if (context_.rank == 0) {
      context_.reporter->warning(
          "the model beneath the adapters has random weights: name some in checkpoint.initial_load_path, or set "
          "checkpoint.initial_load_in_hf (both need checkpoint.enable)");
    }
  }
  base_ = describe_base(digest_of_base(*model_, *context_.mesh), base.path, *adapters_);
  const auto saved = loaded.train_state.find("lora");
  if (saved != loaded.train_state.end()) check(check_base(*saved, base_), kExitUserError, "LORA_BASE");
}

void Trainer::draw_weights(ShardedModel::Which which) {
  const int64_t seed = seed_.value_or(config_.debug.seed.value_or(0));
  model_->init_weights(static_cast<uint64_t>(seed), which);
  if (context_.rank == 0) log_line(absl::StrCat("Initial weights are drawn with debug.seed = ", seed));
}

absl::Status Trainer::takes_batch(int64_t rows) const {
  if (rows == config_.training.local_batch_size) return absl::OkStatus();  // build() made its plan.
  config::JobConfig job = config_;
  job.training.local_batch_size = rows;
  return config::check_split(job, spec_, context_.mesh->mesh());
}

// The schedule of the batch that this mesh takes, which need not be the configuration's when the job came from another.
void Trainer::plan_work() {
  if (pipeline_.ranks == 1 || batch_plan_.local_batch == config_.training.local_batch_size) return;
  config::JobConfig job = config_;
  job.training.local_batch_size = batch_plan_.local_batch;
  pipeline_ = value(config::pipeline_plan(job, spec_.n_layers), kExitBadConfig, "PIPELINE").schedule;
}

checkpoint::TrainState Trainer::train_state() const {
  checkpoint::TrainState state;
  const std::string& order = config_.training.dataloader.order;
  nlohmann::json dataloader = {{"order", order}, {"dp_size", context_.mesh->mesh().size(mesh::Axis::kBatch)}};
  if (order == "global") {
    dataloader["cursor"] = loader_->state();
  } else {
    state.per_rank = loader_->state();
  }
  state.shared = {{"step", step_},
                  {"ntokens_seen", tokens_seen_},
                  {"global_batch", batch_plan_.global_batch},
                  {"seq_len", config_.training.seq_len},
                  {"optimizer_states", state_dtype(config_)},
                  {"lr_scheduler", {{"last_epoch", schedule_step_}}},
                  {"dataloader", std::move(dataloader)}};
  if (balance_) state.shared["load_balance_coeff"] = load_balance_coeff_;
  if (seed_) state.shared["seed"] = *seed_;
  if (config_.optimizer.stochastic_rounding) state.shared["rounding_seed"] = rounding_seed_;
  if (adapters_) state.shared["lora"] = base_;
  return state;
}

void Trainer::save_seed() {
  checkpoint::TrainState state;
  state.shared = {{"step", 0}, {"seed", *seed_}};
  check(checkpointer_->save(0, slices_, std::move(state), checkpoint::Kind::kModel), kExitStorage, "CHECKPOINT");
}

}  // namespace titan::runtime
