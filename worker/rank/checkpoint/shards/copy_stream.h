#pragma once

#include <ATen/ATen.h>

#include <memory>

namespace titan::checkpoint {

// Copies of a device's tensors to host memory that the device makes by itself, beside its other work: no call but
// wait() blocks. One set of copies at a time: follow(), copy() for each tensor, mark(); then hold_back() on the thread
// that trains and wait() on the one that writes. LibTorch's errors are thrown.
class CopyStream {
 public:
  virtual ~CopyStream() = default;

  virtual bool takes(const at::Tensor& tensor) const = 0;  // Whether it lies where these copies come from.
  // Host memory that the device can write to by itself.
  virtual at::Tensor make_buffer(at::IntArrayRef sizes, at::ScalarType type) = 0;

  // The copies that come now see all that this thread has given the device.
  virtual void follow() = 0;
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  // The set of copies is complete.
  virtual void mark() = 0;
  // What this thread gives the device from now on begins when the set has ended: the device waits, not the thread.
  virtual void hold_back() = 0;

  // Returns when the set has ended. On any thread. Throws when it failed.
  virtual void wait() = 0;
};

// On a stream of LibTorch's pool of the device, which is none that training uses.
std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

}  // namespace titan::checkpoint
