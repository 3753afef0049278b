#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

namespace titan::optim {

// One tensor to update: this rank's shard. `value` and `grad` have the same shape and dtype; a shard may have 0
// elements.
struct Slot {
  std::string fqn;
  at::Tensor value;
  at::Tensor grad;  // Filled by the engine before step().
};

struct Options {
  std::string name = "AdamW";            // AdamW, Adam
  std::string implementation = "fused";  // fused, foreach, for-loop
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

// State tensors of one slot, for checkpoints: same shape as the slot's value.
struct SlotState {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

// What a step's own figures decide about its update. Scalars on the slots' device, where they were computed: the fused
// kernels read them there, and no host waits for them. Undefined: gradients as they are, not skipped.
struct Gate {
  at::Tensor divisor;  // float64, at least 1: what the gradients are divided by (clip_divisor).
  at::Tensor skip;     // float32, 1: nothing is updated and the step does not count, else 0.
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  void step(double learning_rate) { step(learning_rate, Gate{}); }
  // May leave the gradients divided.
  virtual void step(double learning_rate, const Gate& gate) = 0;
  // The same in parts: begin_step(), then step_slots() for every slot once.
  virtual void begin_step() = 0;
  virtual void step_slots(size_t first, size_t count, double learning_rate) = 0;
  virtual std::vector<SlotState>& states() = 0;  // In slot order; loading copies into them.
  virtual at::Tensor& step_count() = 0;          // float32 scalar, number of steps taken.
};

// Keeps the slots' tensors by reference (they are views into the engine's flat shards).
std::unique_ptr<Optimizer> make_optimizer(const Options& options, std::vector<Slot> slots);

}  // namespace titan::optim
