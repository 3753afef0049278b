// Runs the casts to eight-bit floats on a GPU.

#include "worker/rank/kernels/cuda/float8_body.h"
#include "worker/rank/kernels/cuda/launch.h"
#include "worker/rank/kernels/cuda/team.h"

namespace titan::kernels::device {
namespace {

template <typename Args>
cudaError_t on_stream(const Args& args, cudaStream_t stream) {
  if (!takes(args)) return kDeclined;
  CudaGrid grid{stream};
  float8(args, grid);
  return grid.error;
}

}  // namespace

cudaError_t launch(const Float8Amax& args, cudaStream_t stream) { return on_stream(args, stream); }
cudaError_t launch(const Float8ColumnAmax& args, cudaStream_t stream) { return on_stream(args, stream); }
cudaError_t launch(const Float8Cast& args, cudaStream_t stream) { return on_stream(args, stream); }
cudaError_t launch(const Float8Rows& args, cudaStream_t stream) { return on_stream(args, stream); }
cudaError_t launch(const Float8Columns& args, cudaStream_t stream) { return on_stream(args, stream); }
cudaError_t launch(const TransposeBytes& args, cudaStream_t stream) { return on_stream(args, stream); }
cudaError_t launch(const FindPaddedRows& args, cudaStream_t stream) { return on_stream(args, stream); }

}  // namespace titan::kernels::device
