#pragma once

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

}  // namespace titan::optim
