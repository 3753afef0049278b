#include "worker/rank/device/host_waits.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "common/base/sync/sync.h"

namespace titan::device {
namespace {

// Process-wide, like LibTorch's switch: an excused read may happen on autograd's thread of the device.
struct Watched {
  sync::Mutex mutex;
  HostWaitDetector* device TITAN_GUARDED_BY(mutex) = nullptr;
  int excused TITAN_GUARDED_BY(mutex) = 0;
};

Watched& watched() {
  static Watched one;
  return one;
}

}  // namespace

ForbidHostWaits::ForbidHostWaits(Device& device) {
  auto* sees = dynamic_cast<HostWaitDetector*>(&device);
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  TORCH_CHECK(now.device == nullptr, "host waits are forbidden already");
  now.device = sees;
  if (sees != nullptr && now.excused == 0) sees->forbid_waits(true);
}

ForbidHostWaits::~ForbidHostWaits() {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  if (HostWaitDetector* sees = std::exchange(now.device, nullptr)) sees->forbid_waits(false);
}

AllowHostWaitGuard::AllowHostWaitGuard() {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  if (now.excused++ == 0 && now.device != nullptr) now.device->forbid_waits(false);
}

AllowHostWaitGuard::~AllowHostWaitGuard() {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  if (--now.excused == 0 && now.device != nullptr) now.device->forbid_waits(true);
}

void check_host_wait(const char* what) {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  TORCH_CHECK(now.device == nullptr || now.excused > 0, "the host waits for its device: ", what);
}

at::Tensor copy_async(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  return (device.is_cuda() ? tensor.pin_memory() : tensor).to(device, tensor.scalar_type(), /*non_blocking=*/true);
}

AsyncRead::AsyncRead(const at::Tensor& tensor) : host_(tensor) {
  const at::Device device = tensor.device();
  if (device.is_cpu()) return;
  host_ = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(device.is_cuda()));
  host_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(device.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const at::Tensor& AsyncRead::wait() {
  if (arrived_) {
    check_host_wait("AsyncRead::wait()");
    arrived_->synchronize();
  }
  arrived_.reset();
  return host_;
}

}  // namespace titan::device
