#include "worker/rank/device/host_waits.h"

#include <c10/util/Exception.h>

#include <utility>

#include "common/base/sync/sync.h"

namespace titan::device {
namespace {

// Of the process, as LibTorch's own switch is: a read that is excused may be on autograd's thread of the device.
struct Watched {
  sync::Mutex mutex;
  SeesHostWaits* device TITAN_GUARDED_BY(mutex) = nullptr;
  int excused TITAN_GUARDED_BY(mutex) = 0;
};

Watched& watched() {
  static Watched one;
  return one;
}

}  // namespace

ForbidHostWaits::ForbidHostWaits(Device& device) {
  auto* sees = dynamic_cast<SeesHostWaits*>(&device);
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  TORCH_CHECK(now.device == nullptr, "host waits are forbidden already");
  now.device = sees;
  if (sees != nullptr && now.excused == 0) sees->forbid_waits(true);
}

ForbidHostWaits::~ForbidHostWaits() {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  if (SeesHostWaits* sees = std::exchange(now.device, nullptr)) sees->forbid_waits(false);
}

NamedHostWait::NamedHostWait() {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  if (now.excused++ == 0 && now.device != nullptr) now.device->forbid_waits(false);
}

NamedHostWait::~NamedHostWait() {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  if (--now.excused == 0 && now.device != nullptr) now.device->forbid_waits(true);
}

void before_host_waits(const char* what) {
  Watched& now = watched();
  const sync::Lock lock(now.mutex);
  TORCH_CHECK(now.device == nullptr || now.excused > 0, "the host waits for its device: ", what);
}

}  // namespace titan::device
