#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/device/memory_snapshot.h"

namespace titan::comm {

struct Connection;

}  // namespace titan::comm

namespace titan::device {

// Options of one process group of a device's collective library.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;  // A view with only this group's keys, prefixed by attempt and group.
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // Address at which the other ranks reach this one.
  std::chrono::milliseconds timeout{300'000};
  // Use shared memory between CPU processes of one machine, if all ranks of the group want it.
  bool shared_memory = true;
  // Maximum number of CTAs (one per SM) that a collective or message in flight uses on a GPU. 0: the library's choice.
  int max_ctas = 0;
  int message_max_ctas = 0;
};

// Statistics of a device's allocator. Peaks are in bytes since the last reset; counts are since the process started.
// -1: not counted.
struct DeviceMemory {
  int64_t peak_active = -1;         // Memory of tensors.
  int64_t peak_reserved = -1;       // Including memory that the allocator caches.
  int64_t driver_allocations = -1;  // Number of allocations by the driver.
  int64_t allocation_retries = -1;
  int64_t out_of_memory = -1;
};

// Elements of a normal distribution, truncated to [lower, upper], as nn::draw_chunk draws them: the box `box` at
// `offset` of a tensor of `shape`, whose elements are numbered in row-major order.
struct NormalBox {
  uint64_t key = 0;  // Key of the random stream.
  float std = 0, lower = 0, upper = 0, below = 0, above = 0, inside = 1;
  std::vector<int64_t> shape, offset, box;
};

// Everything that differs between CPU and CUDA ranks, so that the engine is written once.
class Device {
 public:
  virtual ~Device() = default;

  virtual at::Device torch_device() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> make_backend(const BackendOptions& options) = 0;
  // Opens this rank's groups of all connections together, on all ranks at the same time. None: the device opens them
  // one by one with make_backend(). `world`: rank and size are the world's, the store is the attempt's.
  virtual std::optional<std::vector<c10::intrusive_ptr<c10d::Backend>>> open_groups(
      const std::vector<comm::Connection>& connections, const BackendOptions& world) {
    (void)connections, (void)world;
    return std::nullopt;
  }

  // Gives a storage `bytes` bytes of uninitialized memory, or none for 0. Autograd does not see it.
  virtual void resize_storage(c10::StorageImpl& storage, int64_t bytes) = 0;

  // Blocks until all work queued on the device is done.
  virtual void synchronize() {}

  // Return the peak of the bytes in use and the device's total memory, in bytes.
  virtual int64_t peak_memory_bytes() const = 0;
  virtual int64_t total_memory_bytes() const = 0;

  // Returns whether at::_grouped_mm has a kernel here. Otherwise it reads the groups' ends from the device and
  // multiplies the groups one by one.
  virtual bool has_grouped_kernel() const { return true; }
  // For a CUDA device 10 * major + minor (SM90: 90), which determines its instructions. 0: not a CUDA device.
  virtual int cuda_capability() const { return 0; }

  virtual std::string name() const { return "cpu"; }  // The model, for example "NVIDIA H200".
  virtual DeviceMemory memory() const { return {}; }
  virtual void reset_peak_memory() {}

  // From now on the allocator keeps its last `max_events` events, with the scopes of the allocating thread. 0 stops
  // the recording. The CPU's allocator is handled separately (worker/rank/runtime/memory).
  virtual void record_memory(size_t max_events, const ScopesNow& scopes) { (void)max_events, (void)scopes; }
  // Returns the recorded events and the allocator's blocks. The caller adds the names of scopes.
  virtual MemorySnapshot memory_snapshot() { return {}; }

  // Seeds the random numbers that LibTorch draws on the device (dropout in a custom model).
  virtual void seed(uint64_t seed) { (void)seed; }
  // Fills `out` [box.box[0], box.box[1], ...] (fp32, contiguous, on the device) with the same bits as on the CPU.
  // Returns false if this device does not implement it: the caller then draws on the CPU and copies.
  virtual bool draw(const NormalBox& box, at::Tensor& out) {
    (void)box, (void)out;
    return false;
  }
};

}  // namespace titan::device
