// The CUDA part of device::Device, in a shared object that only CUDA ranks load, so that CPU ranks start without
// LibTorch's CUDA libraries. Exports titan_make_cuda_device and titan_cuda_addresses (comm/make_device.h), and
// titan_expect_broken_groups and titan_before_watchdogs_end (comm/backend_aborts.h).

#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/cuda/Resize.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/env.h>
#include <cuda_runtime_api.h>

#include <mutex>

#include "worker/rank/comm/cuda/lost_peer.h"
#include "worker/rank/comm/cuda/nccl_backend.h"
#include "worker/rank/device/cuda/allocator_history.h"
#include "worker/rank/device/cuda/cuda_graphs.h"
#include "worker/rank/device/cuda/draw.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/host_waits.h"

namespace titan::comm {
namespace {

// Sets variables that CUDA's libraries read when the device's context or the first matrix product is made. Values that
// the user has set take precedence.
void set_library_defaults() {
  // Streams that share one of the device's work queues (8 by default) also share its order: a message that waits for
  // its peer would delay what the peer waits for. Each axis and each direction between two pipeline ranks has a stream.
  // split_groups.h relies on the order of messages on one communicator, so the warning about it is disabled.
  c10::utils::set_env("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0", /*overwrite=*/false);
  c10::utils::set_env("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/false);
  // NCCL's watchdog gives LibTorch's flight recorder four times this long (a minute by default) to write its dump
  // before it reports a lost peer. Ranks have their own recorder (comm/flight_recorder.h), so no dump is needed, and no
  // rank has to poll the store every second for another rank's request for one.
  c10::utils::set_env("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", /*overwrite=*/false);
  c10::utils::set_env("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/false);
  // Under debug.deterministic LibTorch refuses matrix products unless cuBLAS has one of two workspace settings. This
  // one is also LibTorch's default on Hopper.
  c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/false);
}

class CudaDevice final : public device::Device, public device::DeviceGraphs, public device::HostWaitDetector {
 public:
  explicit CudaDevice(int local_index)
      : device_(at::kCUDA, static_cast<c10::DeviceIndex>(local_index)), graphs_(device_) {
    set_library_defaults();
    report_lost_peers();
    const c10::DeviceIndex count = c10::cuda::device_count_ensure_non_zero();  // Reports what is wrong with the driver.
    TORCH_CHECK(local_index >= 0 && local_index < count, "local rank ", local_index,
                " requests it, but the number of CUDA devices on this node is ", static_cast<unsigned>(count),
                " (CUDA_VISIBLE_DEVICES ", c10::utils::get_env("CUDA_VISIBLE_DEVICES").value_or("not set"),
                "); a node runs at most one rank per device");
    at::globalContext().lazyInitDevice(at::kCUDA);
    c10::cuda::set_device(device_.index());
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device_.index()));
    total_memory_ = static_cast<int64_t>(properties.totalGlobalMem);
    name_ = properties.name;
    cuda_capability_ = 10 * properties.major + properties.minor;
    // LibTorch 2.11 builds CUTLASS's grouped kernel for Hopper and data-centre Blackwell.
    has_grouped_kernel_ = properties.major == 9 || properties.major == 10;
  }

  at::Device torch_device() const override { return device_; }

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return make_nccl_backend(options, device_);
  }

  std::optional<std::vector<c10::intrusive_ptr<c10d::Backend>>> open_groups(
      const std::vector<Connection>& connections, const device::BackendOptions& world) override {
    return open_nccl_groups(connections, world, device_);
  }

  std::unique_ptr<device::DeviceGraph> capture(const std::function<void()>& work, device::GraphMemory memory) override {
    return graphs_.capture(work, memory);
  }

  bool has_grouped_kernel() const override { return has_grouped_kernel_; }
  int cuda_capability() const override { return cuda_capability_; }

  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override {
    c10::cuda::CUDAGuard guard(device_);
    // The allocator may give freed memory to the next request on the stream that it was allocated on. If it is freed on
    // another stream, that stream has used it, and its work must end first. Collectives need nothing more: their wait()
    // has made this stream wait for NCCL's.
    if (bytes == 0 && storage.data() != nullptr) {
      c10::cuda::CUDACachingAllocator::recordStream(storage.data_ptr(), c10::cuda::getCurrentCUDAStream());
    }
    at::native::resize_bytes_cuda(&storage, static_cast<size_t>(bytes));
  }

  void synchronize() override {
    // LibTorch checks its sync switch where a stream is synchronized, but not here.
    c10::cuda::warn_or_error_on_sync();
    c10::cuda::CUDAGuard guard(device_);
    c10::cuda::device_synchronize();
  }

  int64_t peak_memory_bytes() const override { return memory().peak_active; }
  int64_t total_memory_bytes() const override { return total_memory_; }
  std::string name() const override { return name_; }

  device::DeviceMemory memory() const override {
    using c10::CachingAllocator::StatType;
    constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    return {.peak_active = stats.active_bytes[kAll].peak,
            .peak_reserved = stats.reserved_bytes[kAll].peak,
            .driver_allocations = stats.num_device_alloc,
            .allocation_retries = stats.num_alloc_retries,
            .out_of_memory = stats.num_ooms};
  }

  void forbid_waits(bool forbidden) override {
    c10::cuda::warning_state().set_sync_debug_mode(forbidden ? c10::cuda::SyncDebugMode::L_ERROR
                                                             : c10::cuda::SyncDebugMode::L_DISABLED);
  }

  void reset_peak_memory() override { c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index()); }

  void record_memory(size_t max_events, const device::ScopesNow& scopes) override {
    device::record_allocator(max_events, scopes);
  }
  device::MemorySnapshot memory_snapshot() override { return device::allocator_snapshot(device_.index()); }

  void seed(uint64_t seed) override {
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }

  bool draw(const device::NormalBox& box, at::Tensor& out) override {
    const size_t dims = box.shape.size();
    if (dims > device::kMaxDims) return false;
    TORCH_CHECK(out.is_cuda() && out.is_contiguous() && out.scalar_type() == at::kFloat,
                "draw() needs a contiguous fp32 tensor on the device");
    device::DrawPlan plan{.key = box.key,
                          .std = box.std,
                          .lower = box.lower,
                          .upper = box.upper,
                          .below = box.below,
                          .above = box.above,
                          .inside = box.inside,
                          .first = 0,
                          .count = out.numel()};
    int64_t stride = 1;
    for (size_t i = 0; i < device::kMaxDims; ++i) {
      const size_t place = device::kMaxDims - 1 - i;
      plan.box[place] = i < dims ? box.box[dims - 1 - i] : 1;
      plan.stride[place] = stride;
      if (i >= dims) continue;
      plan.first += box.offset[dims - 1 - i] * stride;
      stride *= box.shape[dims - 1 - i];
    }
    c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(device::draw_normal(plan, out.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream()));
    return true;
  }

 private:
  const at::Device device_;
  device::CudaGraphs graphs_;
  int64_t total_memory_ = 0;
  std::string name_;
  bool has_grouped_kernel_ = false;
  int cuda_capability_ = 0;
};

std::vector<std::string> addresses() {
  set_library_defaults();
  std::vector<std::string> all(static_cast<size_t>(c10::cuda::device_count()));
  for (size_t i = 0; i < all.size(); ++i) {
    char text[32] = {};
    if (cudaDeviceGetPCIBusId(text, sizeof(text), static_cast<int>(i)) == cudaSuccess) all[i] = text;
  }
  return all;
}

}  // namespace
}  // namespace titan::comm

extern "C" __attribute__((visibility("default"))) titan::device::Device* titan_make_cuda_device(int local_index) {
  return new titan::comm::CudaDevice(local_index);
}

extern "C" __attribute__((visibility("default"))) std::vector<std::string> titan_cuda_addresses() {
  return titan::comm::addresses();
}

extern "C" __attribute__((visibility("default"))) void titan_expect_broken_groups() {
  titan::comm::expect_broken_groups();
}

extern "C" __attribute__((visibility("default"))) void titan_before_watchdogs_end(
    std::function<void(const std::string& words)> call) {
  titan::comm::before_lost_peer_ends(std::move(call));
}
