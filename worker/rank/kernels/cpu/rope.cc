#include "worker/rank/kernels/cpu/rope.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool accepted(const Rope& args) { return args.dim % 2 == 0; }

}  // namespace

TITAN_ROW_OP(rope, Rope);

}  // namespace titan::kernels
