#pragma once

#include <cuda_runtime_api.h>

#include "worker/rank/kernels/device_kernels.h"

// Launches the row operations in bf16 (device_kernels.h) on `stream`, for code that nvcc does not compile. Each call
// returns the result of the launch. rows.cu defines the first group.
namespace titan::kernels::device {

cudaError_t launch(const RmsNormForward& args, cudaStream_t stream);
cudaError_t launch(const RmsNormBackward& args, cudaStream_t stream);
cudaError_t launch(const RopeRotation& args, cudaStream_t stream);
cudaError_t launch(const SwigluForward& args, cudaStream_t stream);
cudaError_t launch(const SwigluBackward& args, cudaStream_t stream);
cudaError_t launch(const SumRows& args, cudaStream_t stream);
cudaError_t launch(const SumRowsBackward& args, cudaStream_t stream);
cudaError_t launch(const SoftmaxChunk& args, cudaStream_t stream);
cudaError_t launch(const CrossEntropyGradient& args, const float* scale, cudaStream_t stream);
cudaError_t launch(const CrossEntropyLoss& args, float* loss, cudaStream_t stream);

// Defined in low_bit_adam.cu.
cudaError_t launch(const LowBitAdam& args, const DeviceStep& where, cudaStream_t stream);

// Defined in float8.cu. These return kDeclined if the kernel does not support the sizes or the alignment (takes() in
// float8_body.h).
inline constexpr cudaError_t kDeclined = cudaErrorNotSupported;
cudaError_t launch(const Float8Amax& args, cudaStream_t stream);
cudaError_t launch(const Float8ColumnAmax& args, cudaStream_t stream);
cudaError_t launch(const Float8Cast& args, cudaStream_t stream);
cudaError_t launch(const Float8Rows& args, cudaStream_t stream);
cudaError_t launch(const Float8Columns& args, cudaStream_t stream);
cudaError_t launch(const TransposeBytes& args, cudaStream_t stream);
cudaError_t launch(const FindPaddedRows& args, cudaStream_t stream);

}  // namespace titan::kernels::device
