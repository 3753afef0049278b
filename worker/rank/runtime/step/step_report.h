#pragma once

// At the end of a step the ranks' reports are summed over the world here, and become the summary and the figures that
// are logged.

#include <cstdint>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/train_state.h"

namespace titan::runtime {

inline constexpr int64_t kReportSums = 5;  // Float64, added up over ranks.

// What one rank contributes at the end of a step's backward pass.
struct StepReport {
  // Ranks that hold the same tokens (of a tensor group, or of the stages of a pipeline) report them once: the others
  // report zero.
  // Scalars, where they were computed; undefined: zero.
  at::Tensor loss_sum;        // Sum of this rank's cross-entropies.
  at::Tensor sum_of_squares;  // Of the gradient shards that count here (ShardedModel::gradients).
  double valid_tokens = 0;    // That count towards the loss.
  bool checkpoint = false;    // This rank was asked to save.
  bool stop = false;          // This rank was asked to save and stop.
};

// What all ranks then know; equal bits on every rank, because an all_reduce leaves the same ones everywhere.
struct StepSummary {
  double avg_loss = 0;  // Per valid token of the step.
  double max_loss = 0;  // Of the rank with the highest mean.
  double grad_norm = 0;
  bool checkpoint = false;
  bool stop = false;
};

// What the reports of all ranks come to, on its way to the host.
class StepReports {
 public:
  // `reports`: the sums, and the largest mean loss of a rank.
  explicit StepReports(const at::Tensor& reports) : reports_(reports) {}
  // Waits for them, which is to wait for the device: the only place of a step that does.
  StepSummary summary();

 private:
  device::AsyncRead reports_;  // [kReportSums + 1]
};

struct Exchanged {
  StepReports reports;
  // Whether loss and norm are finite and how far the gradients are to be clipped: decided where the figures are, from
  // the same bits on every rank.
  optim::Gate gate;
};

// Exchanges the reports by two all_reduces over the world, of 40 and of 8 bytes however many ranks there are; commands
// ride along, so that all ranks act at the same step. Waits for nothing on a device that works behind its host.
Exchanged exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device, double max_norm);

// What is logged of a step besides times: losses, rates, sources of data, experts and logits. `progress`: as the step
// left it, with the schedule's count of the step itself.
StepMetrics step_figures(const config::JobConfig& config, const Built& built, data::Loader& loader,
                         const StepSummary& summary, const Progress& progress);

}  // namespace titan::runtime
