#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <optional>

// Copies between a host and its device that hold up neither. On a CPU they are no copies.
namespace titan::device {

// `tensor`, of the host, on the device: from pages that the device reads by itself. A copy of others would hold the
// host until it is done. Undefined stays undefined.
at::Tensor copy_ahead(const at::Tensor& tensor, at::Device device);

// A small tensor on its way to the host, behind all that its device has been given so far on the current stream.
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
