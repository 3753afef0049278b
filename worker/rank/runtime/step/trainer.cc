#include "worker/rank/runtime/step/trainer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/steps/policy.h"
#include "worker/rank/comm/store.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/optim/grad_norm.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/step_report.h"

namespace titan::runtime {

using device::TraceScope;
using rank_protocol::BeaconCommand;
using rank_protocol::ExitCode;
using rank_protocol::Phase;
namespace event = rank_protocol::event;

namespace {

constexpr int64_t kStepsToWarmUp = 2;

bool reads_late(const RankContext& context) {
  const std::string& when = context.config.training.read_step;
  return when == "late" || (when == "auto" && context.device->torch_device().is_cuda());
}

}  // namespace

Trainer::Trainer(RankContext& context)
    : context_(context),
      config_(context.config),
      tracer_(make_tracer(context)),
      memory_snapshots_(make_memory_snapshots(context)),
      built_(build(context)),
      executor_(built_.model->stages(), &context.mesh->group(mesh::Axis::kPipeline),
                [this](const pipeline::Action& action) { begins(action); }),
      metrics_(open_metrics(context, built_.spec)),
      checkpointer_(open_checkpoints(context, built_)),
      reads_late_(reads_late(context)) {
  if (overlaps_pairs(config_)) executor_.overlap_pairs();
  if (config_.optimizer.early_step_in_backward) {
    built_.model->update_early([this](const parallel::ShardUnit& unit, size_t first_slot, size_t count) {
      update_early(unit, first_slot, count);
    });
  }
}

Trainer::~Trainer() = default;

ExitCode Trainer::run() {
  if (config_.checkpoint.create_seed_checkpoint) {
    save_seed();
    return finish(/*stopped=*/false);
  }
  start();
  context_.reporter->enter_start_phase(Phase::kData);
  if (context_.rank == 0) log_line(absl::StrCat("Training starts at step ", progress_.step + 1));
  if (progress_.step >= config_.training.steps) {
    log_line(absl::StrCat("Nothing to do: step ", progress_.step, " of ", config_.training.steps, " is done in ",
                          config_.job.dump_folder));
  }
  while (progress_.step < config_.training.steps && !agreed_.stop) run_step();
  report_trace(tracer_.finish(progress_.step));
  return finish(agreed_.stop && progress_.step < config_.training.steps);
}

void Trainer::start() {
  start_ = load(context_, built_, checkpointer_.get());
  progress_ = {start_.step, start_.schedule_step, start_.tokens_seen};
  if (config_.validation.enable) {
    const mesh::Mesh& mesh = context_.mesh->mesh();
    const model::DataShare share{.dp_rank = mesh.index(context_.rank, mesh::Axis::kBatch),
                                 .dp_size = mesh.size(mesh::Axis::kBatch),
                                 .local_batch = config_.validation.local_batch_size,
                                 .global_batch = start_.batch_plan.global_batch,
                                 .spans = context_.spans};
    validator_.emplace(
        value(built_.objective->open_validation(config_, share), rank_protocol::kExitUserError, "VALIDATION_DATA"),
        config_.validation.steps, *built_.objective, built_.microbatch_options, built_.pipeline);
  }
  metrics_->start_after(progress_.step);
  report_loaded(context_, start_);
}

void Trainer::save_seed() {
  const int64_t seed = *config_.debug.seed;
  draw_weights(context_, *built_.model, seed, ShardedModel::Which::kAll);
  checkpoint::TrainState state;
  state.shared = {{"step", 0}, {"seed", seed}};
  check(checkpointer_->save(0, built_.slices, std::move(state), checkpoint::CheckpointKind::kModel),
        rank_protocol::kExitStorage, "CHECKPOINT");
}

void Trainer::run_step() {
  const int64_t finished = progress_.step;
  tracer_.begin_step(progress_.step + 1);
  try {
    const TraceScope trace(
        [&] { return absl::StrCat("ProfilerStep#", progress_.step + 1); });  // TensorBoard's name for a step.
    train_step();
  } catch (...) {
    memory_snapshots_.failed(finished);
    throw;
  }
  report_trace(tracer_.end_step(progress_.step));
  memory_snapshots_.end_step(progress_.step);
}

// A trace that cannot be written does not stop the training.
void Trainer::report_trace(const absl::StatusOr<std::optional<Tracer::Saved>>& saved) {
  if (!saved.ok()) {
    context_.reporter->warning(absl::StrCat("the profiler's trace is lost: ", saved.status().message()));
    return;
  }
  if (!*saved) return;
  const Tracer::Saved& trace = **saved;
  log_line(absl::StrCat("Profiler trace: ", trace.path));
  if (!trace.on_request) return;
  context_.reporter->event(event::kTrace,
                           {{"first_step", trace.first_step}, {"last_step", trace.last_step}, {"bytes", trace.bytes}});
}

void Trainer::train_step() {
  const absl::Duration began = context_.clock->monotonic();
  const comm::LedgerCounts before = context_.ledger.counts();
  const int64_t waited_before = context_.ledger.waited_nanos();
  const std::vector<data::Batch> batches = fetch_batches();
  StepReport report = forward_backward(batches);
  context_.reporter->enter(Phase::kOptimizer);
  read_pending_step();  // The previous step, whose figures arrived while this step was queued on the device.
  const TraceScope trace([] { return "norm, exchange, optimizer, save"; });
  report.sum_of_squares =
      config_.optimizer.early_step_in_backward ? early_squares_ : optim::sum_of_squares(built_.model->gradients());
  if (reads_own_rows()) report.unusable = static_cast<double>(start_.loader->own_unusable());
  add_commands(report);
  Exchanged exchanged = exchange(report, *context_.mesh, context_.device->torch_device(), config_.training.max_norm);
  acknowledge_commands();  // Before the save: a request during the save gets a separate checkpoint.
  update(exchanged.gate);
  last_step_traffic_ = comm::subtract(context_.ledger.counts(), before);
  ++progress_.step;
  pending_step_ = PendingStep{progress_.step, began, std::move(exchanged.reports)};
  const std::optional<StepSummary> summary = must_read_step() ? read_pending_step() : std::nullopt;
  progress_.tokens_seen += start_.batch_plan.global_batch * built_.objective->units_of_training_row(config_);
  const absl::Duration took = context_.clock->monotonic() - began;
  context_.reporter->finished_step(progress_.step, took);
  report_own_time(took, waited_before);
  if (progress_.step == start_.step + 1) {
    // The first step also opens connections and fills caches. Later a silent rank is detected sooner.
    context_.mesh->set_timeout(std::chrono::seconds(config_.comm.train_timeout_seconds));
  }
  if (summary) log_step(*summary);
  ++progress_.schedule_step;

  if (validator_ && validator_->due(progress_.step, config_.validation.freq)) validate();
  save_if_due();
}

// Reports times for the comparison of ranks. Only if the host's waits are the waits for other ranks: a GPU waits for
// them asynchronously, unseen by its host, and no figure is better than a wrong one. The first steps of an attempt and
// profiled steps are not representative. Saves and validations are between the steps.
void Trainer::report_own_time(absl::Duration took, int64_t waited_before) {
  if (!context_.device->torch_device().is_cpu() || tracer_.recording() ||
      progress_.step <= start_.step + kStepsToWarmUp)
    return;
  const absl::Duration waited = absl::Nanoseconds(context_.ledger.waited_nanos() - waited_before);
  context_.reporter->own_time(std::max(took - waited, absl::ZeroDuration()));
}

void Trainer::validate() {
  const TraceScope trace([] { return "validation"; });
  context_.reporter->enter(Phase::kValidate);
  validating_ = true;
  built_.model->prepare_gathers();
  const ValidationResult result = validator_->run(executor_, *context_.mesh);
  const bool finite = std::isfinite(result.loss);
  if (!finite) {
    handle_nonfinite("NONFINITE_LOSS",
                     absl::StrCat("step ", progress_.step, ": the validation loss ", result.loss, " is not finite"));
  }
  report_validation_warnings();
  log_samples();
  validating_ = false;
  built_.model->release();
  if (result.terms == 0) warn_nothing_validated(result);
  if (result.terms == 0 || !finite) return;
  metrics_->add_validation_tokens(result.rows * built_.objective->units_of_validation_row(config_));
  const NamedMetrics metrics =
      value(metrics_->log_validation(progress_.step, result.loss), rank_protocol::kExitStorage, "METRICS_OUTPUT");
  if (context_.rank != 0) return;
  nlohmann::json members = {{"step", progress_.step}, {"metrics", nlohmann::json::object()}};
  for (const auto& [name, number] : metrics) members["metrics"][name] = number;
  context_.reporter->event(event::kStep, std::move(members));
}

void Trainer::warn_nothing_validated(const ValidationResult& result) const {
  if (context_.rank != 0) return;
  context_.reporter->warning(absl::StrCat("step ", progress_.step, ": nothing was validated: ",
                                          built_.objective->why_nothing_validated(config_, result.batches)));
}

void Trainer::log_samples() {
  if (!built_.objective->has_samples()) return;
  const model::WholeModel model{
      .visit = [this](at::Tensor x, const auto& pass) { return built_.model->visit(std::move(x), pass); },
      .blocks = built_.model->blocks(),
      .device = built_.model->device()};
  const model::Samples samples = built_.objective->sample(model, *context_.mesh);
  for (const std::string& line : samples.lines) log_line(absl::StrCat("step ", progress_.step, ": ", line));
  log_pictures(samples);
  if (samples.not_finite.empty()) return;
  handle_nonfinite("NONFINITE_LOGITS", absl::StrCat("step ", progress_.step, ": ", samples.not_finite));
}

void Trainer::log_pictures(const model::Samples& samples) {
  if (samples.pictures.empty()) return;
  std::vector<LoggedPicture> pictures;
  const auto add = [&](const model::Picture& one, bool shown) {
    pictures.push_back({one.name, one.caption, one.png, one.width, one.height, shown});
  };
  for (const model::Picture& one : samples.pictures) add(one, !samples.grid);
  if (samples.grid) add(*samples.grid, true);
  check(metrics_->log_pictures(progress_.step, config_.validation.save_img_folder, pictures),
        rank_protocol::kExitStorage, "METRICS_OUTPUT");
}

// Handles a non-finite figure of a validation, which changes no weights: the figure is not shown. Every rank finds the
// same.
void Trainer::handle_nonfinite(const char* reason, const std::string& message) const {
  if (config_.training.nonfinite_policy == "fail") {
    throw Failure(rank_protocol::kExitUserError, reason,
                  absl::StrCat(message, "; training.nonfinite_policy = \"skip\" would only warn"));
  }
  if (context_.rank == 0) context_.reporter->warning(message);
}

std::vector<data::Batch> Trainer::fetch_batches() {
  const TraceScope trace([] { return "data"; });
  context_.reporter->enter(Phase::kData);
  const int64_t units = built_.objective->units_of_training_row(config_);
  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < start_.batch_plan.microbatches; ++i) {
    const absl::Duration began = context_.clock->monotonic();
    batches.push_back(value(start_.loader->next(), rank_protocol::kExitUserError, "DATA"));
    metrics_->add_batch(batches.back().rows() * units, context_.clock->monotonic() - began);
  }
  report_data_warnings();
  return batches;
}

StepReport Trainer::forward_backward(const std::vector<data::Batch>& batches) {
  const TraceScope trace([] { return "forward and backward"; });
  const at::Device device = context_.device->torch_device();
  std::vector<Microbatches> runs;
  int64_t loss_terms = 0;
  for (const data::Batch& batch : batches) {
    runs.push_back(make_microbatches(*built_.objective, batch, built_.microbatch_options));
    loss_terms += runs.back().loss_terms;
  }

  // Only the first backward pass needs the count over all ranks, so it is reduced during the first forward pass.
  at::Tensor global_terms = at::full({1}, loss_terms, at::TensorOptions(at::kLong).device(device));
  comm::Pending counting = context_.mesh->group(mesh::Axis::kLoss).all_reduce(global_terms);
  const auto count = [&] {
    counting.wait();
    return global_terms.squeeze(0).clamp_min(1);  // All rows may be prompts, which have no labels.
  };

  // In a pipeline each batch is a separate run, so the schedule holds no more activations than the batch size allows,
  // as `titanctl schedule show` draws it. Weights stay gathered and gradients are summed over all runs of the step.
  built_.model->reset_gradients();
  built_.model->prepare_gathers();
  const at::TensorOptions wide = at::TensorOptions(at::kDouble).device(device);
  if (config_.optimizer.early_step_in_backward) {
    early_squares_ = at::zeros({}, wide);
    if (checkpointer_) checkpointer_->before_update();
    built_.optimizer->begin_step();
  }
  at::Tensor loss_sum = at::zeros({}, wide);
  for (size_t i = 0; i < runs.size(); ++i) {
    run_ = static_cast<int64_t>(i);
    loss_sum += executor_.run(built_.pipeline, runs[i].contexts, count, /*last=*/i + 1 == runs.size());
  }
  built_.model->finish_step();
  StepReport report;
  if (reports_loss(built_.pipeline, *context_.mesh)) {
    report.loss_terms = static_cast<double>(loss_terms);
    report.loss_sum = loss_sum;
  }
  return report;
}

// Shows the progress of the step in the beacon.
void Trainer::begins(const pipeline::Action& action) {
  if (action.microbatch >= 0) context_.reporter->microbatch(run_ * built_.pipeline.microbatches + action.microbatch);
  if (validating_) return;
  context_.reporter->enter(action.work == pipeline::ComputationType::kForward ? Phase::kForward : Phase::kBackward);
}

// Runs one unit's optimizer step during the backward pass, so that its gradients can be freed. The norm of all
// gradients is then not yet known, so none are clipped.
void Trainer::update_early(const parallel::ShardUnit& unit, size_t first_slot, size_t count) {
  std::vector<at::Tensor> gradients;
  for (const parallel::ShardedParameter& placed : unit.parameters()) {
    if (placed.primary) gradients.push_back(placed.grad);
  }
  early_squares_ += optim::sum_of_squares(gradients);
  built_.optimizer->step_slots(first_slot, count, built_.schedule->factor(progress_.schedule_step));
}

void Trainer::add_commands(StepReport& report) {
  command_ = context_.reporter->command();
  if (context_.stop_signal != nullptr && context_.stop_signal->load()) command_ = BeaconCommand::kStopAndSave;
  report.checkpoint = command_ == BeaconCommand::kCheckpoint;
  report.stop = command_ == BeaconCommand::kStopAndSave;
}

void Trainer::update(const optim::Gate& gate) {
  if (checkpointer_) checkpointer_->before_update();
  if (built_.balance) built_.balance->finish_step(gate.skip);
  // Otherwise it is already done, unit by unit.
  if (!config_.optimizer.early_step_in_backward)
    built_.optimizer->step(built_.schedule->factor(progress_.schedule_step), gate);
  if (built_.qk_clip) built_.qk_clip->finish_step(gate.skip);
}

// Returns whether the host needs the step's figures before it continues. Otherwise they arrive while the device works
// on the next step, so the device never waits for its host.
bool Trainer::must_read_step() const {
  if (!reads_late_ || metrics_->should_log(progress_.step) || agreed_.checkpoint || agreed_.stop) return true;
  if (validator_ && validator_->due(progress_.step, config_.validation.freq)) return true;
  const checkpoint::StepEdge edge{progress_.step, config_.training.steps, /*requested=*/false};
  return progress_.step >= config_.training.steps ||
         (checkpointer_ && checkpoint::decide_save(config_.checkpoint, edge) != checkpoint::SaveDecision::kNo);
}

// Reads the newest step's figures. Returns none if the step was skipped or none is pending. All ranks decide the same,
// from the same numbers and at the same step.
std::optional<StepSummary> Trainer::read_pending_step() {
  if (!pending_step_) return std::nullopt;
  PendingStep newest = *std::exchange(pending_step_, std::nullopt);
  const StepSummary summary = newest.reports.summary();
  if (context_.recorder) context_.recorder->synchronized();
  check(start_.loader->set_unusable(summary.unusable), rank_protocol::kExitUserError, "DATA");
  if (!agreed_.stop) agreed_.since = newest.began;
  agreed_.checkpoint |= summary.checkpoint;
  agreed_.stop |= summary.stop;
  if (std::isfinite(summary.avg_loss) && std::isfinite(summary.grad_norm)) return summary;
  const std::string message = absl::StrCat("step ", newest.step, ": loss ", summary.avg_loss, ", gradient norm ",
                                           summary.grad_norm, " is not finite");
  if (config_.training.nonfinite_policy == "fail") {
    throw Failure(rank_protocol::kExitUserError, "NONFINITE_LOSS",
                  absl::StrCat(message, "; training.nonfinite_policy = \"skip\" would skip such steps"));
  }
  context_.reporter->warning(absl::StrCat(message, ": the step is skipped (training.nonfinite_policy)"));
  return std::nullopt;
}

void Trainer::log_step(const StepSummary& summary) {
  if (!metrics_->should_log(progress_.step)) return;
  const StepMetrics figures = step_figures(config_, built_, *start_.loader, summary, progress_);
  const NamedMetrics metrics =
      value(metrics_->log(progress_.step, figures), rank_protocol::kExitStorage, "METRICS_OUTPUT");
  for (const std::string& warning : metrics_->take_warnings()) context_.reporter->warning(warning);
  if (context_.rank != 0) return;
  nlohmann::json members = {{"step", progress_.step}, {"metrics", nlohmann::json::object()}};
  for (const auto& [name, number] : metrics) members["metrics"][name] = number;
  context_.reporter->event(event::kStep, std::move(members));
}

void Trainer::save_if_due() {
  const bool asked = std::exchange(agreed_.checkpoint, false) || agreed_.stop;
  if (!checkpointer_ || config_.checkpoint.load_only) {
    if (context_.rank == 0 && asked) {
      context_.reporter->warning(absl::StrCat(
          "nothing is saved: ", checkpointer_ ? "checkpoint.load_only forbids it" : "checkpoint.enable is false"));
    }
    return;
  }
  const checkpoint::StepEdge edge{progress_.step, config_.training.steps, asked};
  const checkpoint::SaveDecision decision = checkpoint::decide_save(config_.checkpoint, edge);
  if (decision == checkpoint::SaveDecision::kNo) return;
  context_.reporter->enter(Phase::kCheckpoint);
  absl::Status saved;
  if (decision == checkpoint::SaveDecision::kLast) {
    saved = checkpointer_->save_last(progress_.step, built_.slices, train_state(context_, built_, start_, progress_));
  } else if (agreed_.stop) {
    saved = annotate(
        checkpointer_->save_before_stop(progress_.step, built_.slices, train_state(context_, built_, start_, progress_),
                                        remaining_grace()),
        absl::StrCat("stopped on request after step ", progress_.step, ", but its checkpoint could not be saved"));
  } else {
    saved = checkpointer_->save(progress_.step, built_.slices, train_state(context_, built_, start_, progress_));
  }
  check(saved, rank_protocol::kExitStorage, "CHECKPOINT");
}

// Returns the rest of a stop's grace period. The time of the request is unknown. At the earliest it is the beginning of
// the step whose reports contained it.
absl::Duration Trainer::remaining_grace() const {
  const absl::Duration spent = context_.clock->monotonic() - agreed_.since;
  return time_after_stop(config_) - spent;
}

void Trainer::acknowledge_commands() {
  if (command_ != BeaconCommand::kNone) context_.reporter->acknowledge(command_);
}

void Trainer::report_data_warnings() { report_data_warnings(*start_.loader); }

void Trainer::report_data_warnings(data::BatchSource& loader) {
  const bool alike = config_.training.dataloader.order == "global" && loader.warns_alike();
  const bool reports = alike ? context_.rank == 0 : loader.warns_alike() || reads_own_rows();
  for (const std::string& warning : loader.take_warnings()) {
    if (reports) context_.reporter->warning(warning);
  }
}

// Names unusable rows once: each validation reads the same ones.
void Trainer::report_validation_warnings() {
  if (!std::exchange(validation_warned_, true)) report_data_warnings(validator_->data());
}

// Returns whether this is the first of the ranks that read the same rows.
bool Trainer::reads_own_rows() const {
  const mesh::Mesh& mesh = context_.mesh->mesh();
  return mesh.index(context_.rank, mesh::Axis::kTensor) == 0 && mesh.index(context_.rank, mesh::Axis::kContext) == 0 &&
         mesh.index(context_.rank, mesh::Axis::kPipeline) == 0;
}

// Returns how long a rank may wait at its end until its metrics are sent. It shows no progress meanwhile. A rank is
// considered hung only after several times the timeout.
absl::Duration Trainer::outputs_timeout(bool stopped) const {
  constexpr absl::Duration kMost = absl::Seconds(30);
  const absl::Duration most = std::min(kMost, absl::Seconds(config_.comm.train_timeout_seconds));
  return stopped ? std::clamp(remaining_grace(), absl::ZeroDuration(), most) : most;
}

ExitCode Trainer::finish(bool stopped) {
  context_.reporter->enter(Phase::kExit);
  metrics_->no_more();
  if (checkpointer_) check(checkpointer_->wait(), rank_protocol::kExitStorage, "CHECKPOINT");
  context_.mesh->group(mesh::Axis::kWorld).barrier();  // Detects a lost rank.
  if (context_.store) comm::leave_together(*context_.store, context_.rank, context_.world, std::chrono::seconds(10));
  metrics_->end(outputs_timeout(stopped));
  for (const std::string& warning : metrics_->take_warnings()) context_.reporter->warning(warning);
  if (context_.rank == 0) {
    log_line(stopped ? absl::StrCat("Stopped on request after step ", progress_.step) : "Training completed");
  }
  context_.reporter->event(stopped ? event::kStopped : event::kFinished, {{"step", progress_.step}});
  return stopped ? rank_protocol::kExitStopped : rank_protocol::kExitFinished;
}

}  // namespace titan::runtime
