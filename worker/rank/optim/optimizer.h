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

// One tensor to update: this rank's shard. `value` and `grad` have the same shape and dtype; a shard may have 0
// elements.
struct Slot {
  std::string fqn;
  at::Tensor value;
  at::Tensor grad;   // Filled by the engine before step().
  size_t group = 0;  // Whose options it goes by.
  // The whole parameter's shape, and where `value` begins in it; empty: `value` is the whole.
  std::vector<int64_t> shape = {}, offset = {};
};

// Of one group of slots.
struct Options {
  std::string name = "AdamW";            // AdamW, Adam, Muon
  std::string implementation = "fused";  // fused, foreach, for-loop; the same for all groups.
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double lr = 1;  // Times what step() is given.
  // How AdamW and Adam keep their moments: auto (the value's type), float32, bfloat16, 8bit. Another than the value's
  // goes with "fused" alone.
  std::string state_dtype = "auto";
  // Of bf16 values that AdamW and Adam update, with "fused" alone; drawn from `seed`, the same for all groups. A job
  // that resumes takes its checkpoint's by set_seed().
  bool stochastic_rounding = false;
  uint64_t seed = 0;
  // Muon's (muon.h), as torch.optim.Muon names them.
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;
  std::string adjust_lr = "match_rms_adamw";
};

// How a state that is not numbers of its slot's shape becomes such, and back: float32, where the argument is.
struct StateForm {
  std::vector<int64_t> shape;
  std::function<at::Tensor(const at::Tensor& kept)> numbers;
  std::function<at::Tensor(const at::Tensor& numbers)> kept;
};

// What an optimizer remembers of one slot, for checkpoints ("optim.NAME.FQN"): tensors of the slot's shape, or what
// stands for one.
struct SlotState {
  struct Named {
    std::string name;
    at::Tensor value;
    std::shared_ptr<const StateForm> form = nullptr;  // Null: `value` is the numbers.
  };
  std::vector<Named> tensors;  // AdamW, Adam: exp_avg, exp_avg_sq; Muon: momentum_buffer.

  // The one of this name; throws where there is none.
  at::Tensor& operator[](std::string_view name);
  int64_t bytes() const;
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
  // May leave something else in the gradients.
  virtual void step(double learning_rate, const Gate& gate) = 0;
  // The same in parts: begin_step(), then step_slots() for every slot once.
  virtual void begin_step() = 0;
  virtual void step_slots(size_t first, size_t count, double learning_rate) = 0;
  virtual std::vector<SlotState>& states() = 0;  // In slot order; loading copies into them.
  virtual at::Tensor& step_count() = 0;          // float32 scalar, number of steps taken.
  virtual void set_seed(uint64_t seed) = 0;      // Of the steps from now on.
};

// Keeps the slots' tensors by reference (they are views into the engine's flat shards). All slots go by `options`.
std::unique_ptr<Optimizer> make_optimizer(const Options& options, std::vector<Slot> slots);

// Where whole matrices are worked on, of which this rank's slots are parts.
struct MatrixMesh {
  const comm::Group* group = nullptr;       // Null: slots are whole. It outlives the optimizer.
  at::Device device = at::kCPU;             // That talks and works.
  std::vector<MatrixParameter> parameters;  // By slot; not read for slots that are no matrices.
  int64_t round_elements = 1 << 24;         // Of an owner's matrices on their way at once.
};

// The same with options for each group; one step counter serves them all.
std::unique_ptr<Optimizer> make_grouped_optimizer(std::vector<Options> groups, std::vector<Slot> slots,
                                                  MatrixMesh mesh = {});

}  // namespace titan::optim
