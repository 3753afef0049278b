#include "worker/rank/device/cuda/cuda_graphs.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

namespace titan::device {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(std::shared_ptr<const c10::MempoolId_t> pool) : pool_(std::move(pool)) {}
  at::cuda::CUDAGraph& graph() { return graph_; }
  void replay() override { graph_.replay(); }

 private:
  const std::shared_ptr<const c10::MempoolId_t> pool_;
  at::cuda::CUDAGraph graph_;
};

// Returns false if LibTorch throws.
template <typename Call>
bool succeeds(const Call& call) {
  try {
    call();
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

// Cleans up after a failed capture. If the stream reports the failure, LibTorch's allocators continue to consider the
// capture active, with a callback of a graph that will be destroyed.
void abandon(at::cuda::CUDAGraph& graph, at::Device device, c10::MempoolId_t pool) {
  if (succeeds([&] { graph.capture_end(); })) return;
  (void)cudaGetLastError();
  succeeds([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device.index(), pool); });
  succeeds([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool); });
}

}  // namespace

CudaGraphs::~CudaGraphs() {
  if (stream_) (void)cudaStreamDestroy(stream_->stream());
}

const c10::cuda::CUDAStream& CudaGraphs::stream() {
  if (!stream_) {
    // Not from LibTorch's pool, whose streams a process group may also use.
    cudaStream_t made = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    stream_ = c10::cuda::getStreamFromExternal(made, device_.index());
  }
  return *stream_;
}

std::unique_ptr<DeviceGraph> CudaGraphs::capture(const std::function<void()>& work, GraphMemory memory) {
  const c10::cuda::CUDAGuard device(device_);
  const c10::cuda::CUDAStreamGuard guard(stream());
  std::shared_ptr<const c10::MempoolId_t> pool;
  if (memory == GraphMemory::kShared) pool = shared_.lock();
  // A pool without a graph cannot be used again.
  if (pool == nullptr) pool = std::make_shared<const c10::MempoolId_t>(at::cuda::graph_pool_handle());
  if (memory == GraphMemory::kShared) shared_ = pool;
  auto made = std::make_unique<CudaGraph>(pool);
  at::cuda::CUDAGraph& graph = made->graph();
  try {
    // Other threads may continue: NCCL's watchdogs query events, and autograd's thread allocates memory.
    graph.capture_begin(*pool, cudaStreamCaptureModeThreadLocal);
    work();
    graph.capture_end();
  } catch (...) {
    abandon(graph, device_, *pool);
    throw;
  }
  return made;
}

}  // namespace titan::device
