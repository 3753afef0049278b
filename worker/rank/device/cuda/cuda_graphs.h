#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

#include "worker/rank/device/device_graphs.h"

namespace titan::device {

// Graphs of one CUDA device. Work is captured on a stream that nobody else uses and that never does any: graphs are
// replayed on the current one.
class CudaGraphs final : public DeviceGraphs {
 public:
  explicit CudaGraphs(at::Device device) : device_(device) {}
  ~CudaGraphs() override;
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, GraphMemory memory) override;

 private:
  const c10::cuda::CUDAStream& stream();

  const at::Device device_;
  std::optional<c10::cuda::CUDAStream> stream_;   // From the first capture on.
  std::weak_ptr<const c10::MempoolId_t> shared_;  // While a graph is in it.
};

}  // namespace titan::device
