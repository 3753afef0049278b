#include "worker/rank/kernels/cpu/swiglu.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool accepted(const SwigluForward& args) { return args.limit >= 0; }
bool accepted(const SwigluBackward& args) {
  return args.limit >= 0 && (args.linear == nullptr) == (args.dlinear == nullptr);
}

}  // namespace

TITAN_ROW_OP(swiglu_forward, SwigluForward);
TITAN_ROW_OP(swiglu_backward, SwigluBackward);

}  // namespace titan::kernels
