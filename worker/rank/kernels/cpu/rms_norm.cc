#include "worker/rank/kernels/cpu/rms_norm.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool accepted(const RmsNormForward& args) { return args.dim > 0 && (args.residual == nullptr || args.sum != nullptr); }
bool accepted(const RmsNormBackward& args) {
  return args.dim > 0 && (args.dweight == nullptr || args.scratch != nullptr);
}

}  // namespace

TITAN_ROW_OP(rms_norm_forward, RmsNormForward);
TITAN_ROW_OP(rms_norm_backward, RmsNormBackward);

}  // namespace titan::kernels
