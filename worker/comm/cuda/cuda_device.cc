// The CUDA half of comm::Device, in a shared object that only a CUDA rank loads: a CPU rank starts without LibTorch's
// CUDA libraries. Exports titan_make_cuda_device (comm/device.h).

#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/cuda/Resize.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "worker/comm/device.h"

namespace titan::comm {
namespace {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int local_index) : device_(at::kCUDA, static_cast<c10::DeviceIndex>(local_index)) {
    const int count = c10::cuda::device_count();
    TORCH_CHECK(local_index >= 0 && local_index < count, "local rank ", local_index, " asks for CUDA device ",
                local_index, " but this node has ", count);
    at::globalContext().lazyInitDevice(at::kCUDA);
    c10::cuda::set_device(device_.index());
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device_.index()));
    total_memory_ = static_cast<int64_t>(properties.totalGlobalMem);
  }

  at::Device torch_device() const override { return device_; }

  c10::intrusive_ptr<c10d::Backend> make_backend(const BackendOptions& options) override {
    auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    nccl->timeout = options.timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(options.store, options.rank, options.size, std::move(nccl));
  }

  Collectives collectives() const override { return Collectives::kNative; }

  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override {
    c10::cuda::CUDAGuard guard(device_);
    at::native::resize_bytes_cuda(&storage, static_cast<size_t>(bytes));
  }

  void synchronize() override {
    c10::cuda::CUDAGuard guard(device_);
    c10::cuda::device_synchronize();
  }

  // Bytes that tensors hold, as the caching allocator counts them; what torchtitan reports as max_active.
  int64_t peak_memory_bytes() const override {
    using c10::CachingAllocator::StatType;
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    return stats.active_bytes[static_cast<size_t>(StatType::AGGREGATE)].peak;
  }

  int64_t total_memory_bytes() const override { return total_memory_; }

 private:
  const at::Device device_;
  int64_t total_memory_ = 0;
};

}  // namespace
}  // namespace titan::comm

extern "C" __attribute__((visibility("default"))) titan::comm::Device* titan_make_cuda_device(int local_index) {
  return new titan::comm::CudaDevice(local_index);
}
