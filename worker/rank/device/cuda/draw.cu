// Draws initial weights on the device with the same bits as nn::draw_chunk on the CPU: compiled without fused
// multiply-add, with exact square roots.

#include "worker/rank/device/cuda/draw.h"
#include "worker/rank/random/random_math.h"

namespace titan::device {
namespace {

__global__ void draw_kernel(DrawPlan plan, float* out) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < plan.count; i += step) {
    int64_t rest = i, number = plan.first;
    for (int dim = kMaxDims - 1; dim >= 0; --dim) {
      number += rest % plan.box[dim] * plan.stride[dim];
      rest /= plan.box[dim];
    }
    out[i] = random::element(plan.key, number, plan.std, plan.lower, plan.upper, plan.below, plan.above, plan.inside);
  }
}

}  // namespace

cudaError_t draw_normal(const DrawPlan& plan, float* out, cudaStream_t stream) {
  if (plan.count == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  constexpr int64_t kMaxBlocks = 65536;
  const int64_t wanted = (plan.count + kThreads - 1) / kThreads;
  const int blocks = static_cast<int>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  draw_kernel<<<blocks, kThreads, 0, stream>>>(plan, out);
  return cudaGetLastError();
}

}  // namespace titan::device
