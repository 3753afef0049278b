#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/optim/muon_plan.h"

namespace titan::optim {

// One tensor to update: this rank's shard, which may have 0 elements. `value` and `grad` have the same shape and dtype.
struct Slot {
  std::string fqn;
  at::Tensor value;  // [...]: any shape, that of the shard.
  at::Tensor grad;   // [...], the shape of value. Filled by the engine before step().
  size_t group = 0;  // Index of its group's options.
  // Shape of the whole parameter, and where `value` begins in it. Empty: `value` is the whole.
  std::vector<int64_t> shape = {}, offset = {};
};

// Options of one group of slots.
struct OptimizerOptions {
  std::string name = "AdamW";            // AdamW, Adam or Muon.
  std::string implementation = "fused";  // fused, foreach or for-loop. The same for all groups.
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double lr = 1;  // Multiplies the learning rate given to step().
  // Type in which AdamW and Adam keep their moments: auto (the value's type), float32, bfloat16 or 8bit. A type other
  // than the value's requires "fused".
  std::string state_dtype = "auto";
  // AdamW and Adam round updated bf16 values stochastically. Requires "fused". `seed` is the same for all groups. A
  // resumed job sets the seed of its checkpoint with set_seed().
  bool stochastic_rounding = false;
  uint64_t seed = 0;
  // Options of Muon (muon.h), with torch.optim.Muon's names.
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;
  std::string adjust_lr = "match_rms_adamw";
};

// Converts a state that is not numbers of its slot's shape to such numbers, and back. The numbers are float32, and
// results are on the argument's device.
struct StateForm {
  std::vector<int64_t> shape;                                 // Shape of the numbers.
  std::function<at::Tensor(const at::Tensor& kept)> numbers;  // uint8 [bytes] to [shape].
  std::function<at::Tensor(const at::Tensor& numbers)> kept;  // [shape] to uint8 [bytes].
};

// State that an optimizer keeps of one slot, for checkpoints ("optim.NAME.FQN"): tensors of the slot's shape, or other
// tensors that `form` converts.
struct SlotState {
  struct Named {
    std::string name;
    at::Tensor value;                                 // [...], the slot's shape, or uint8 [bytes] with `form`.
    std::shared_ptr<const StateForm> form = nullptr;  // Null: `value` is the numbers.
  };
  std::vector<Named> tensors;  // AdamW and Adam: exp_avg, exp_avg_sq. Muon: momentum_buffer.

  // Returns the tensor [...] of this name. Throws if there is none.
  at::Tensor& operator[](std::string_view name);
  int64_t bytes() const;
};

// Results of a step that control its update. They are scalars on the slots' device, where they were computed: the fused
// kernels read them there, and no host waits for them. Undefined: gradients are not divided, and the step is not
// skipped.
struct Gate {
  at::Tensor divisor;  // float64 [], at least 1: divisor of the gradients (clip_divisor).
  at::Tensor skip;     // float32 []. 1: nothing is updated and the step does not count. 0: it does.
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  void step(double learning_rate) { step(learning_rate, Gate{}); }
  // Updates every slot once. May leave other numbers in the gradients.
  virtual void step(double learning_rate, const Gate& gate) = 0;
  // Do the same in parts, without a gate: begin_step(), then step_slots() for ranges that cover every slot once. Muon's
  // step_slots() throws.
  virtual void begin_step() = 0;
  virtual void step_slots(size_t first, size_t count, double learning_rate) = 0;
  virtual std::vector<SlotState>& states() = 0;  // In slot order. Loading copies into them.
  virtual at::Tensor& step_count() = 0;          // float32 []: number of steps taken.
  virtual void set_seed(uint64_t seed) = 0;      // From the next step on.
};

// Makes an optimizer that keeps the slots' tensors by reference (they are views into the engine's flat shards).
// `options` apply to all slots.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<Slot> slots);

// The ranks that compute whole matrices, of which this rank's slots are parts.
struct MatrixMesh {
  const comm::Group* group = nullptr;       // Null: slots are whole. Must outlive the optimizer.
  at::Device device = at::kCPU;             // Device that communicates and computes.
  std::vector<MatrixParameter> parameters;  // By slot. Ignored for slots that are not matrices.
  int64_t round_elements = 1 << 24;         // Most elements of an owner's matrices in one round.
};

// Does the same with options for each group. One step counter serves all groups.
std::unique_ptr<Optimizer> make_grouped_optimizer(std::vector<OptimizerOptions> groups, std::vector<Slot> slots,
                                                  MatrixMesh mesh = {});

}  // namespace titan::optim
