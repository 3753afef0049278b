#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/plan/models/adapters.h"
#include "common/rank_protocol/launch.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/optim/lr_schedule.h"
#include "worker/rank/parallel/expert_balance.h"
#include "worker/rank/parallel/qk_clip.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/engine/sharded_model.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"
#include "worker/rank/runtime/profiling/memory_snapshots.h"
#include "worker/rank/runtime/profiling/tracer.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/data_setup.h"
#include "worker/rank/runtime/step/microbatches.h"
#include "worker/rank/runtime/step/optimizer_setup.h"
#include "worker/rank/runtime/step/rank_context.h"
#include "worker/rank/runtime/step/samples.h"
#include "worker/rank/runtime/step/step_report.h"
#include "worker/rank/runtime/step/validator.h"

namespace titan::runtime {

// One rank's training: builds, loads, runs the steps, saves. Throws Failure (and what current_failure() understands).
class Trainer {
 public:
  // Builds everything that needs no other rank, then joins the mesh. `context` must outlive the trainer.
  explicit Trainer(RankContext& context);
  ~Trainer();

  // From the newest usable checkpoint to training.steps, or to a step edge after a stop was asked for.
  rank_protocol::ExitCode run();

  // For tests and the ledger file.
  int64_t step() const { return step_; }
  const comm::LedgerCounts& last_step_traffic() const { return last_step_traffic_; }

 private:
  // trainer_setup.cc
  void build();
  void open_outputs();
  void load();
  void draw_weights(ShardedModel::Which which = ShardedModel::Which::kAll);
  void settle_base(const checkpoint::LoadResult& loaded, const checkpoint::LoadResult& base);
  absl::Status takes_batch(int64_t rows) const;
  void plan_work();
  checkpoint::TrainState train_state() const;
  void save_seed();

  // trainer_resume.cc
  void restore_state(const checkpoint::LoadResult& loaded);
  void tell_unused_start(const checkpoint::LoadResult& loaded) const;
  void tell_conversion(const checkpoint::LoadResult& loaded) const;
  void settle_balance(const checkpoint::LoadResult& loaded);
  void tell_balance(double coefficient) const;
  absl::StatusOr<BatchPlan> plan_rows(int64_t global_batch, int dp_size) const;
  void settle_batch(const checkpoint::LoadResult& loaded, int dp_size);
  RowsBefore rows_before(const checkpoint::LoadResult& loaded) const;
  void restore_data(const checkpoint::LoadResult& loaded);
  void restore_torchtitan_data(const nlohmann::json& cursor);

  // trainer.cc
  void run_step();
  void train_step();
  void tell_trace(const absl::StatusOr<std::optional<Tracer::Saved>>& saved);
  void validate();
  void tell_nothing_validated(const ValidationResult& result) const;
  void log_samples();
  void meet_nonfinite(const char* reason, const std::string& message) const;
  std::vector<data::Batch> fetch_batches();
  void tell_own_time(absl::Duration took, int64_t waited_before);
  StepReport forward_backward(const std::vector<data::Batch>& batches);
  void begins(const pipeline::Action& action);
  void update_early(const parallel::ShardUnit& unit, size_t first_slot, size_t count);
  void add_commands(StepReport& report);
  void update(const optim::Gate& gate);
  bool must_settle() const;
  std::optional<StepSummary> settle();
  void add_source_figures(StepMetrics& figures) const;
  void add_expert_figures(StepMetrics& figures) const;
  void add_logit_figures(StepMetrics& figures) const;
  void log_step(const StepSummary& summary);
  void save_if_due();
  absl::Duration time_after_stop() const;
  absl::Duration stop_patience() const;
  absl::Duration outputs_patience(bool stopped) const;
  void acknowledge_commands();
  rank_protocol::ExitCode finish(bool stopped);
  void report_data_warnings();

  RankContext& context_;
  const config::JobConfig& config_;
  BatchPlan batch_plan_;
  models::ModelSpec spec_;
  std::unique_ptr<checkpoint::HfMapper> hf_mapper_;
  std::unique_ptr<ShardedModel> model_;
  std::optional<parallel::ExpertBalance> balance_;  // None: the model has no experts.
  double load_balance_coeff_ = 0;                   // Its coefficient.
  std::unique_ptr<Executor> executor_;
  pipeline::Schedule pipeline_;  // Of one batch of the loader.
  int64_t run_ = 0;              // Which batch of the step is under way.
  bool validating_ = false;
  at::Tensor early_squares_;  // Of the gradients that update_early() has used up.
  MicrobatchOptions microbatch_options_;
  config::UpdateRules rules_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::QkClip> qk_clip_;  // Null: optimizer.qk_clip is off.
  std::optional<optim::LrSchedule> schedule_;
  std::vector<checkpoint::Slice> slices_;
  std::optional<models::AdapterSpec> adapters_;             // None: the model itself is trained.
  nlohmann::json base_;                                     // describe_base() of the model beneath them.
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;  // Null when checkpoints are off.
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Samples> samples_;      // Null without prompts.
  std::unique_ptr<Validator> validator_;  // Null when validation is off.
  std::unique_ptr<MetricsLogger> metrics_;
  Tracer tracer_;
  MemorySnapshots memory_snapshots_;

  std::optional<int64_t> seed_;  // Of the initial weights; none where the checkpoint that they came from does not say.
  int64_t rounding_seed_ = 0;    // Of the optimizer's stochastic rounding: that of the job's first attempt.

  int64_t step_ = 0;           // Finished steps.
  int64_t schedule_step_ = 0;  // The schedule's own count: behind when it was excluded from loading.
  int64_t first_step_ = 0;     // Where this attempt began.
  int64_t tokens_seen_ = 0;    // Over all ranks.
  rank_protocol::Command command_ = rank_protocol::Command::kNone;  // What this rank reported.

  // A step whose figures nobody on the host has seen yet.
  struct Unsettled {
    int64_t step = 0;
    absl::Duration began;  // Monotonic.
    StepReports reports;
  };
  std::optional<Unsettled> unsettled_;
  // What all ranks agreed on, until it is done. A command reaches the nodes at different times.
  struct Agreed {
    bool checkpoint = false, stop = false;
    absl::Duration since;  // Monotonic; when the step began whose reports told of it.
  };
  Agreed agreed_;
  bool reads_late_ = false;  // training.read_step
  comm::LedgerCounts last_step_traffic_;
};

}  // namespace titan::runtime
