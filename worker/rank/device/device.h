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

// One process group of a device's collective library.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;  // Only this group's keys: prefixed by attempt and group.
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // Where the other ranks reach this one.
  std::chrono::milliseconds timeout{300'000};
  bool shared_memory = true;  // Between processes on the CPU of one machine, where all ranks of the group want it.
  // Most CTAs, which are SMs, of a GPU that one collective or message in flight takes; 0: the library's own choice.
  int max_ctas = 0;
  int message_max_ctas = 0;
};

// What a device's allocator has seen since the last reset, in bytes; -1: it does not count that.
struct DeviceMemory {
  int64_t peak_active = -1;         // Held by tensors.
  int64_t peak_reserved = -1;       // With what the allocator keeps for later.
  int64_t driver_allocations = -1;  // How often the driver was asked for memory since the process began.
  int64_t allocation_retries = -1;
  int64_t out_of_memory = -1;
};

// Numbers of a normal distribution, cut to [lower, upper], as nn::draw_chunk makes them: the box `box` at `offset` of a
// tensor of `shape`, whose elements are numbered in row-major order.
struct NormalBox {
  uint64_t key = 0;  // Of the stream.
  float std = 0, lower = 0, upper = 0, below = 0, above = 0, inside = 1;
  std::vector<int64_t> shape, offset, box;
};

// Everything that differs between CPU and CUDA ranks, so that the engine is written once.
class Device {
 public:
  virtual ~Device() = default;

  virtual at::Device torch_device() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> make_backend(const BackendOptions& options) = 0;
  // This rank's group of each connection, where the device opens them all together, all ranks at the same time. None:
  // it makes one after the other. `world`: rank and size are the world's, the store is the attempt's.
  virtual std::optional<std::vector<c10::intrusive_ptr<c10d::Backend>>> open_groups(
      const std::vector<comm::Connection>& connections, const BackendOptions& world) {
    (void)connections, (void)world;
    return std::nullopt;
  }

  // Gives a storage `bytes` bytes of fresh memory, or none for 0, below autograd.
  virtual void resize_storage(c10::StorageImpl& storage, int64_t bytes) = 0;

  // Blocks until everything queued on the device is done.
  virtual void synchronize() {}

  // Highest number of bytes in use so far, and all that the device has.
  virtual int64_t peak_memory_bytes() const = 0;
  virtual int64_t total_memory_bytes() const = 0;

  // Whether at::_grouped_mm has a kernel here. Else it asks the device where each group ends and calls them one by one.
  virtual bool has_grouped_kernel() const { return true; }
  // Of a CUDA device 10 * major + minor (SM90: 90): which instructions it has. 0: it is none.
  virtual int cuda_capability() const { return 0; }

  virtual std::string name() const { return "cpu"; }  // The model: "NVIDIA H200".
  virtual DeviceMemory memory() const { return {}; }
  virtual void reset_peak_memory() {}

  // From now on the allocator keeps its last `most_events` events, with the scopes of who allocates; 0: none any more.
  // The CPU's allocator is not the device's own (worker/rank/runtime/memory).
  virtual void record_memory(size_t most_events, const ScopesNow& scopes) { (void)most_events, (void)scopes; }
  // What it keeps and holds; the names of scopes are left to whom they were asked of.
  virtual MemorySnapshot memory_snapshot() { return {}; }

  // For random numbers that LibTorch draws on the device (dropout in a model of one's own).
  virtual void seed(uint64_t seed) { (void)seed; }
  // Fills `out` (fp32, contiguous, of the box's sizes, on the device) with the same bits as on the CPU. False: the
  // device has no code for it; the caller draws on the CPU and copies.
  virtual bool draw(const NormalBox& box, at::Tensor& out) {
    (void)box, (void)out;
    return false;
  }
};

}  // namespace titan::device
