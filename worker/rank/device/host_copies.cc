#include "worker/rank/device/host_copies.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "worker/rank/device/host_waits.h"

namespace titan::device {

at::Tensor copy_ahead(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  return (device.is_cuda() ? tensor.pin_memory() : tensor).to(device, tensor.scalar_type(), /*non_blocking=*/true);
}

LateRead::LateRead(const at::Tensor& tensor) : host_(tensor) {
  const at::Device device = tensor.device();
  if (device.is_cpu()) return;
  host_ = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(device.is_cuda()));
  host_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(device.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const at::Tensor& LateRead::wait() {
  if (arrived_) {
    before_host_waits("a late read");
    arrived_->synchronize();
  }
  arrived_.reset();
  return host_;
}

}  // namespace titan::device
