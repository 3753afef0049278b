#pragma once

#include <cstdint>

#include "worker/comm/device_mesh.h"
#include "worker/comm/host_copies.h"
#include "worker/optim/optimizer.h"

namespace titan::runtime {

inline constexpr int64_t kReportFields = 5;  // Float64, of each rank.

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

// What all ranks then know; equal bits on every rank, because each adds the same numbers in rank order.
struct StepSummary {
  double avg_loss = 0;  // Per valid token of the step.
  double max_loss = 0;  // Of the rank with the highest mean.
  double grad_norm = 0;
  bool checkpoint = false;
  bool stop = false;
};

// The reports of all ranks, on their way to the host.
class StepReports {
 public:
  explicit StepReports(const at::Tensor& reports) : reports_(reports) {}
  // Waits for them, which is to wait for the device: the only place of a step that does.
  StepSummary summary();

 private:
  comm::LateRead reports_;  // [ranks, kReportFields]
};

struct Exchanged {
  StepReports reports;
  // Whether loss and norm are finite and how far the gradients are to be clipped: decided where the figures are, from
  // the same numbers in the same order on every rank.
  optim::Gate gate;
};

// Exchanges the reports by one all-gather over the world; commands ride along, so that all ranks act at the same step.
// Waits for nothing on a device that works behind its host.
Exchanged exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device, double max_norm);

}  // namespace titan::runtime
