#pragma once

// Avoids waits of the host for its device: asynchronous copies between the two and, for tests of a device, guards that
// turn every unknown wait into an error. Training does not use the guards.

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <optional>

#include "worker/rank/device/device.h"

namespace titan::device {

// Additional base class of a device::Device that detects when its host waits for it. The CPU is not one: its host never
// waits.
class HostWaitDetector {
 public:
  virtual ~HostWaitDetector() = default;
  // Sets whether every wait of the host for the device throws c10::Error, in the whole process.
  virtual void forbid_waits(bool forbidden) = 0;
};

// While it lives, every wait of the host for `device` throws, on every thread of the process. Only one at a time. Does
// nothing if the device is not a HostWaitDetector.
class ForbidHostWaits {
 public:
  explicit ForbidHostWaits(Device& device);
  ~ForbidHostWaits();
  ForbidHostWaits(const ForbidHostWaits&) = delete;
  ForbidHostWaits& operator=(const ForbidHostWaits&) = delete;
};

// Marks a known read of a step (docs/decisions/engine.md, "A step reads the device in known places only"): while it
// lives, waits are allowed, on all threads.
class AllowHostWaitGuard {
 public:
  AllowHostWaitGuard();
  ~AllowHostWaitGuard();
  AllowHostWaitGuard(const AllowHostWaitGuard&) = delete;
  AllowHostWaitGuard& operator=(const AllowHostWaitGuard&) = delete;
};

// Call this before a wait `what` that LibTorch does not detect. Throws c10::Error where waits are forbidden.
void check_host_wait(const char* what);

// Copies `tensor` [...] from the host to the device and returns the copy [...]. Uses pinned memory, because a copy from
// other memory would block the host until it is done. On a CPU nothing is copied. An undefined tensor stays undefined.
at::Tensor copy_async(const at::Tensor& tensor, at::Device device);

// An asynchronous copy of a small tensor to the host, queued on the current stream. On a CPU nothing is copied.
class AsyncRead {
 public:
  // `tensor`: any shape [...].
  explicit AsyncRead(const at::Tensor& tensor);
  // Blocks until the copy is complete. Returns the same tensor [...] every time.
  const at::Tensor& wait();

 private:
  // [...], on the host.
  at::Tensor host_;
  std::optional<c10::Event> arrived_;  // None: complete.
};

}  // namespace titan::device
