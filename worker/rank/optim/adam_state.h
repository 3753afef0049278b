#pragma once

// Adam keeps its moments in float32, bfloat16 or 8-bit codes, and low_bit_adam() steps over them, with stochastic
// rounding if requested.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/optim/block_codes.h"
#include "worker/rank/optim/optimizer.h"

namespace titan::optim {

// Storage of the moments of one slot (optimizer.state_dtype).
struct MomentFormat {
  at::ScalarType type = at::kFloat;            // Type of the numbers. kByte means codes.
  std::shared_ptr<const BlockCodes> codes[2];  // Codes of the average and of the square. Null unless kByte.
};

// Chooses the storage. "auto" is the value's type. "8bit" is codes, but float32 for vectors and small parameters
// (memory::has_8bit_states). Throws if the value is neither float32 nor bfloat16, unless "auto".
MomentFormat moment_format(const Slot& slot, const std::string& state_dtype);

// Makes exp_avg and exp_avg_sq: zeros of the value's shape, or uint8 [bytes] if `form` has codes.
SlotState make_moments(const Slot& slot, const MomentFormat& form);

// Numbers of a step that low_bit_adam() needs. Tensors are read on their device, so the host does not wait.
struct SmallStep {
  double learning_rate = 0;
  at::Tensor step;           // float32 []: number of this step, from 1.
  at::Tensor divisor, skip;  // float32 [], as in Gate. Undefined: 1 and 0.
};

// Runs one step of Adam or AdamW in fp32 over a slot with moments in another type than its value, or with stochastic
// rounding of its bf16 value (options.stochastic_rounding). Uses Titan's kernel if it is chosen (worker/rank/kernels),
// else LibTorch's operations, some rows at a time. The bits of codes and of stochastic rounding do not depend on how a
// mesh divides rows.
void low_bit_adam(const OptimizerOptions& options, const Slot& slot, const MomentFormat& form, SlotState& state,
                  const SmallStep& step);

// Location of rows in a whole parameter: element [row, column] is number first + row * stride + column.
struct RowLayout {
  int64_t first = 0, stride = 0;
};

// Rounds `exact`, float32 [rows, columns], to bf16 [rows, columns] stochastically: each number becomes one of its two
// neighbours, so that the result is exact on average. Infinities and NaN round to the nearest. The random half word is
// the upper half of a word of Philox-4x32-10, which depends only on the key, the step ([], on the device of `exact`)
// and the number's place. The bits are those of worker/rank/kernels/cpu/low_bit_adam.h.
at::Tensor stochastic_round(const at::Tensor& exact, uint64_t key, const at::Tensor& step, const RowLayout& place);

}  // namespace titan::optim
