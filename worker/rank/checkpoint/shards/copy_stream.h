#pragma once

#include <ATen/ATen.h>

#include <memory>

namespace titan::checkpoint {

// Copies a device's tensors to host memory, asynchronously to the device's other work: no call but wait() blocks.
// Tensors have any shape `[...]`. Make one set of copies at a time: follow(), copy() for each tensor, mark(); then
// block_current_stream() on the training thread and wait() on the writing thread. Throws LibTorch's exceptions.
class CopyStream {
 public:
  virtual ~CopyStream() = default;

  virtual bool takes(const at::Tensor& tensor) const = 0;  // Whether `tensor [...]` is on the device of these copies.
  // Returns host memory `[sizes...]` that the device can write to directly.
  virtual at::Tensor make_buffer(at::IntArrayRef sizes, at::ScalarType type) = 0;

  // Makes the next copies wait for all work that this thread has queued on the device.
  virtual void follow() = 0;
  // Copies `from [...]` to `to`, a buffer of the same shape.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  // Ends the set of copies.
  virtual void mark() = 0;
  // Makes work that this thread queues later start when the set has ended: the device waits, not the thread.
  virtual void block_current_stream() = 0;

  // Returns when the set has ended. Callable on any thread. Throws if the set failed.
  virtual void wait() = 0;
};

// Uses a stream of LibTorch's pool for the device, which training does not use.
std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

}  // namespace titan::checkpoint
