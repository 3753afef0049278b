#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace titan::device {

inline constexpr int kMaxDims = 5;

// device::NormalBox for the kernel. Dims are padded in front with ones.
struct DrawPlan {
  uint64_t key;
  float std, lower, upper, below, above, inside;
  int64_t box[kMaxDims];
  int64_t stride[kMaxDims];  // Strides of the whole tensor, in elements.
  int64_t first;             // Index of the box's first element in the whole tensor.
  int64_t count;
};

// Launches on `stream` and returns the launch error.
cudaError_t draw_normal(const DrawPlan& plan, float* out, cudaStream_t stream);

}  // namespace titan::device
