#pragma once

// Sums the ranks' reports over the world at the end of a step, and makes the summary and the logged figures from them.

#include <cstdint>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"
#include "worker/rank/runtime/step/built.h"
#include "worker/rank/runtime/step/train_state.h"

namespace titan::runtime {

inline constexpr int64_t kReportSums = 6;  // Number of float64 sums over ranks.

// A rank's contribution at the end of a step's backward pass.
struct StepReport {
  // If several ranks hold the same tokens (of a tensor group, or of the stages of a pipeline), one reports them and the
  // others report zero. Tensors are scalars on the device that computed them; undefined: zero.
  at::Tensor loss_sum;        // Sum of this rank's loss terms.
  at::Tensor sum_of_squares;  // For the gradient shards that this rank counts (ShardedModel::gradients).
  double loss_terms = 0;      // Number of loss terms, such as a language model's labels.
  double unusable = 0;        // Rows of the data (BatchSource::own_unusable).
  bool checkpoint = false;    // This rank was requested to save.
  bool stop = false;          // This rank was requested to save and stop.
};

// The summary that all ranks get, with equal bits everywhere, because an all_reduce leaves the same bits on every rank.
struct StepSummary {
  double avg_loss = 0;  // Per loss term of the step.
  double max_loss = 0;  // Highest mean of a rank.
  double grad_norm = 0;
  int64_t unusable = 0;  // Rows of the data, of all ranks.
  bool checkpoint = false;
  bool stop = false;
};

// The combined reports of all ranks, being copied to the host.
class StepReports {
 public:
  // `reports`: float64 [kReportSums + 1], the sums and the largest mean loss of a rank.
  explicit StepReports(const at::Tensor& reports) : reports_(reports) {}
  // Waits for the copy and thus for the device. It is the only such wait in a step.
  StepSummary summary();

 private:
  device::AsyncRead reports_;  // [kReportSums + 1]
};

struct Exchanged {
  StepReports reports;
  // Whether loss and norm are finite, and the clipping factor of the gradients. Computed on the device, from the same
  // bits on every rank.
  optim::Gate gate;
};

// Exchanges the reports by two all_reduces over the world, of 48 and 8 bytes for any number of ranks. Commands are
// included, so that all ranks act at the same step. Does not wait on an asynchronous device.
Exchanged exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device, double max_norm);

// Returns the logged figures of a step except times: losses, rates, sources of data, experts and logits. `progress`:
// the progress after the step, with the schedule's count of the step itself.
StepMetrics step_figures(const config::JobConfig& config, const Built& built, data::BatchSource& loader,
                         const StepSummary& summary, const Progress& progress);

}  // namespace titan::runtime
