// Runs the row operations on a GPU, over bf16.

#include "worker/rank/kernels/cuda/cross_entropy_body.h"
#include "worker/rank/kernels/cuda/expert_rows_body.h"
#include "worker/rank/kernels/cuda/launch.h"
#include "worker/rank/kernels/cuda/rms_norm_body.h"
#include "worker/rank/kernels/cuda/rope_body.h"
#include "worker/rank/kernels/cuda/swiglu_body.h"
#include "worker/rank/kernels/cuda/team.h"

namespace titan::kernels::device {

using Bf16 = uint16_t;

cudaError_t launch(const RmsNormForward& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  rms_norm_forward<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const RmsNormBackward& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  rms_norm_backward<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const RopeRotation& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  rope<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const SwigluForward& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  swiglu_forward<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const SwigluBackward& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  swiglu_backward<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const SumRows& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  sum_rows<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const SumRowsBackward& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  sum_rows_backward<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const SoftmaxChunk& args, cudaStream_t stream) {
  CudaGrid grid{stream};
  softmax_chunk<Bf16>(args, grid);
  return grid.error;
}

cudaError_t launch(const CrossEntropyGradient& args, const float* scale, cudaStream_t stream) {
  CudaGrid grid{stream};
  cross_entropy_gradient<Bf16>(args, scale, grid);
  return grid.error;
}

cudaError_t launch(const CrossEntropyLoss& args, float* loss, cudaStream_t stream) {
  CudaGrid grid{stream};
  cross_entropy_loss(args, loss, grid);
  return grid.error;
}

}  // namespace titan::kernels::device
