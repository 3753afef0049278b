#include "worker/rank/kernels/cpu/rope.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool accepted(const RopeRotation& args) { return args.dim % 2 == 0; }

}  // namespace

TITAN_ROW_OP(rope, RopeRotation);

}  // namespace titan::kernels
