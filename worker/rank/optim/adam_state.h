#pragma once

// Adam keeps its moments in float32, bfloat16 or 8-bit codes, and small_adam() steps over them, with stochastic
// rounding where it is asked for.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/optim/block_codes.h"
#include "worker/rank/optim/optimizer.h"

namespace titan::optim {

// How Adam keeps the moments of one slot (optimizer.state_dtype).
struct KeptForm {
  at::ScalarType type = at::kFloat;            // Of the numbers; kByte: codes.
  std::shared_ptr<const BlockCodes> codes[2];  // Of the average and of the square; null unless kByte.
};

// "auto": the value's own type. "8bit": codes for matrices, float32 for what is too small for them.
KeptForm kept_form(const Slot& slot, const std::string& state_dtype);

// Moments of zeros, exp_avg and exp_avg_sq.
SlotState make_moments(const Slot& slot, const KeptForm& form);

// What small_adam() needs to know of a step. The factors are read where they are: nobody waits for a device.
struct SmallStep {
  double learning_rate = 0;
  at::Tensor step;           // float32: the number of this step, from 1.
  at::Tensor divisor, skip;  // float32, as a Gate's; undefined: 1 and 0.
};

// One step of Adam or AdamW in fp32 over a slot whose moments are kept in another type than its value's, or whose value
// is rounded stochastically (options.stochastic_rounding, of bf16): by Titan's kernel where it is chosen
// (worker/rank/kernels), else by LibTorch's operations, some rows at a time. Bits of codes and chance do not depend on
// how a mesh cuts rows.
void small_adam(const Options& options, const Slot& slot, const KeptForm& form, SlotState& state,
                const SmallStep& step);

// Where the elements of rows lie in a whole parameter: element [row, column] is number first + row * stride + column.
struct Place {
  int64_t first = 0, stride = 0;
};

// Each number of `exact`, float32 [rows, columns], as one of the two bf16 that it lies between, each as often as it is
// near to the other; what is not finite as the nearest. Chance is the upper half of a word of Philox-4x32-10 that
// depends on the key, the step (a scalar, where `exact` is) and the number's place alone; the same bits as
// worker/rank/kernels/cpu/small_adam.h.
at::Tensor round_by_chance(const at::Tensor& exact, uint64_t key, const at::Tensor& step, const Place& place);

}  // namespace titan::optim
