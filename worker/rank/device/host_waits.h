#pragma once

// How a host avoids waiting for its device: copies between the two that hold up neither, and, for tests of a device,
// guards under which every wait but the known ones is an error. Training itself forbids nothing.

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <optional>

#include "worker/rank/device/device.h"

namespace titan::device {

// A device::Device that sees when its host waits for it is one of these as well. The CPU is not: its host waits for
// nothing.
class SeesHostWaits {
 public:
  virtual ~SeesHostWaits() = default;
  // From now on whatever makes the host wait for the device throws c10::Error, in the whole process, or no longer does.
  virtual void forbid_waits(bool forbidden) = 0;
};

// While one lives, whatever makes the host wait for `device` throws, on every thread of the process; one at a time.
// Does nothing where the device is not a SeesHostWaits.
class ForbidHostWaits {
 public:
  explicit ForbidHostWaits(Device& device);
  ~ForbidHostWaits();
  ForbidHostWaits(const ForbidHostWaits&) = delete;
  ForbidHostWaits& operator=(const ForbidHostWaits&) = delete;
};

// Around a read that a step is known for (docs/decisions/engine.md, "A step reads the device in known places only"):
// the host may wait there, and with it any other thread for as long.
class NamedHostWait {
 public:
  NamedHostWait();
  ~NamedHostWait();
  NamedHostWait(const NamedHostWait&) = delete;
  NamedHostWait& operator=(const NamedHostWait&) = delete;
};

// Before a wait that LibTorch does not see, `what`. Throws c10::Error where it is forbidden.
void before_host_waits(const char* what);

// `tensor`, of the host, on the device: from pages that the device reads by itself. A copy of others would hold the
// host until it is done. On a CPU nothing is copied. Undefined stays undefined.
at::Tensor copy_ahead(const at::Tensor& tensor, at::Device device);

// A small tensor on its way to the host, behind all that its device has been given so far on the current stream. On a
// CPU nothing is copied.
class LateRead {
 public:
  explicit LateRead(const at::Tensor& tensor);
  // Blocks until it has arrived; the same tensor every time.
  const at::Tensor& wait();

 private:
  at::Tensor host_;
  std::optional<c10::Event> arrived_;  // None: it is there.
};

}  // namespace titan::device
