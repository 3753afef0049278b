// Runs Adam with moments in fewer bits on a GPU. The build flags make it produce the CPU's bits: products and sums are
// fused only where the body says so, and denormals count as zero.

#include "worker/rank/kernels/cuda/launch.h"
#include "worker/rank/kernels/cuda/low_bit_adam_body.h"
#include "worker/rank/kernels/cuda/team.h"

namespace titan::kernels::device {

cudaError_t launch(const LowBitAdam& args, const DeviceStep& where, cudaStream_t stream) {
  CudaGrid grid{stream};
  low_bit_adam(args, where, grid);
  return grid.error;
}

}  // namespace titan::kernels::device
