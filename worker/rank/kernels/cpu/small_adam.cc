#include "worker/rank/kernels/cpu/small_adam.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

// Stochastic rounding is for bf16 only. Every size is accepted.
bool accepted(const SmallAdam& args) { return !args.stochastic || args.type == Dtype::kBf16; }

}  // namespace

TITAN_ROW_OP(small_adam, SmallAdam);

}  // namespace titan::kernels
