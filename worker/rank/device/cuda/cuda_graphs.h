#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

#include "worker/rank/device/device_graphs.h"

namespace titan::device {

// Graphs of one CUDA device. Work is captured on a separate stream that never executes anything: graphs are replayed on
// the current stream.
class CudaGraphs final : public DeviceGraphs {
 public:
  explicit CudaGraphs(at::Device device) : device_(device) {}
  ~CudaGraphs() override;
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, GraphMemory memory) override;

 private:
  const c10::cuda::CUDAStream& stream();

  const at::Device device_;
  std::optional<c10::cuda::CUDAStream> stream_;   // Created by the first capture.
  std::weak_ptr<const c10::MempoolId_t> shared_;  // Set while a graph uses the pool.
};

}  // namespace titan::device
