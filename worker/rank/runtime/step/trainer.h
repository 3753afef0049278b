#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/rank_protocol/launch.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/outputs.h"
#include "worker/rank/runtime/step/step_report.h"
#include "worker/rank/runtime/step/train_state.h"
#include "worker/rank/runtime/step/validation.h"

namespace titan::runtime {

// Trains on one rank: builds, loads, runs the steps, saves. Throws Failure (and what current_failure() understands).
class Trainer {
 public:
  // Builds everything that needs no other rank, then joins the mesh. `context` must outlive the trainer.
  explicit Trainer(RankContext& context);
  ~Trainer();

  // Trains from the newest usable checkpoint to training.steps, or to a step boundary after a requested stop.
  rank_protocol::ExitCode run();

  // For tests and the ledger file.
  int64_t step() const { return progress_.step; }
  const comm::LedgerCounts& last_step_traffic() const { return last_step_traffic_; }

 private:
  void start();
  void save_seed();
  void run_step();
  void report_trace(const absl::StatusOr<std::optional<Tracer::Saved>>& saved);

  // A step.
  void train_step();
  std::vector<data::Batch> fetch_batches();
  StepReport forward_backward(const std::vector<data::Batch>& batches);
  void begins(const pipeline::Action& action);
  void update_early(const parallel::ShardUnit& unit, size_t first_slot, size_t count);
  void add_commands(StepReport& report);
  void acknowledge_commands();
  void update(const optim::Gate& gate);
  bool must_read_step() const;
  std::optional<StepSummary> read_pending_step();
  void report_own_time(absl::Duration took, int64_t waited_before);
  void log_step(const StepSummary& summary);
  void report_data_warnings();
  void report_data_warnings(data::BatchSource& loader);
  void report_validation_warnings();
  bool reads_own_rows() const;

  // Between steps.
  void validate();
  void warn_nothing_validated(const ValidationResult& result) const;
  void log_samples();
  void log_pictures(const model::Samples& samples);
  void handle_nonfinite(const char* reason, const std::string& message) const;
  void save_if_due();
  absl::Duration remaining_grace() const;
  absl::Duration outputs_timeout(bool stopped) const;
  rank_protocol::ExitCode finish(bool stopped);

  // A step whose figures the host has not read yet.
  struct PendingStep {
    int64_t step = 0;
    absl::Duration began;  // Monotonic.
    StepReports reports;
  };
  // Commands that all ranks have agreed on and not yet executed. A command reaches the nodes at different times.
  struct Agreed {
    bool checkpoint = false, stop = false;
    absl::Duration since;  // Monotonic start of the step whose reports contained the command.
  };

  RankContext& context_;
  const config::JobConfig& config_;
  Tracer tracer_;
  MemorySnapshots memory_snapshots_;  // Records from the first allocation on.
  Built built_;
  Executor executor_;
  const std::unique_ptr<MetricsLogger> metrics_;
  const std::unique_ptr<checkpoint::Checkpointer> checkpointer_;  // Null if checkpoints are off.
  LoadedState start_;
  std::optional<Validator> validator_;  // Empty if validation is off.

  Progress progress_;
  int64_t run_ = 0;  // Index of the current batch in the step.
  bool validating_ = false;
  bool validation_warned_ = false;  // Unusable rows of the validation data were named.
  at::Tensor early_squares_;        // Scalar: sum of squares of the gradients that update_early() has consumed.
  rank_protocol::BeaconCommand command_ = rank_protocol::BeaconCommand::kNone;  // The command that this rank reported.
  std::optional<PendingStep> pending_step_;
  Agreed agreed_;
  const bool reads_late_;  // training.read_step
  comm::LedgerCounts last_step_traffic_;
};

}  // namespace titan::runtime
