#pragma once

#include <cstdint>

#include "worker/comm/device_mesh.h"

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

// Exchanges the reports by one all-gather over the world; commands ride along, so that all ranks act at the same step.
// The only place where a step waits for the device.
StepSummary exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device);

}  // namespace titan::runtime
