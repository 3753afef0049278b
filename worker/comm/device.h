#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "worker/comm/ledger_backend.h"

namespace titan::comm {

// One process group of a device's collective library.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;  // Only this group's keys: prefixed by attempt and group.
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // Where the other ranks reach this one.
  std::chrono::milliseconds timeout{300'000};
};

// Everything that differs between CPU and CUDA ranks, so that the engine is written once.
class Device {
 public:
  virtual ~Device() = default;

  virtual at::Device torch_device() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> make_backend(const BackendOptions& options) = 0;
  virtual Collectives collectives() const = 0;

  // Gives a storage `bytes` bytes of fresh memory, or none for 0, below autograd.
  virtual void resize_storage(c10::StorageImpl& storage, int64_t bytes) = 0;

  // Blocks until everything queued on the device is done.
  virtual void synchronize() {}

  // Highest number of bytes in use so far, and all that the device has.
  virtual int64_t peak_memory_bytes() const = 0;
  virtual int64_t total_memory_bytes() const = 0;
};

std::unique_ptr<Device> make_cpu_device();

// "cpu", or "cuda" with the index of the device on this node. CUDA lives in a shared object that is loaded only here.
// Errors: InvalidArgument (unknown name), Unimplemented (built without CUDA), FailedPrecondition (no such device).
absl::StatusOr<std::unique_ptr<Device>> make_device(const std::string& name, int local_index);

// What the CUDA shared object exports under the name kCudaFactorySymbol. Throws c10::Error.
using CudaFactory = Device* (*)(int local_index);
inline constexpr char kCudaFactorySymbol[] = "titan_make_cuda_device";
inline constexpr char kCudaLibrary[] = "libtitan_cuda.so";

}  // namespace titan::comm
