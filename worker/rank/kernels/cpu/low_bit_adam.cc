#include "worker/rank/kernels/cpu/low_bit_adam.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

// Stochastic rounding is for bf16 only. Every size is accepted.
bool accepted(const LowBitAdam& args) { return !args.stochastic || args.type == Dtype::kBf16; }

}  // namespace

TITAN_ROW_OP(low_bit_adam, LowBitAdam);

}  // namespace titan::kernels
