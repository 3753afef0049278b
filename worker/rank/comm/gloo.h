#pragma once

#include "worker/rank/device/device.h"

namespace titan::comm {

// A Gloo process group that is bound to options.host. Throws if a peer cannot be reached within the timeout.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const device::BackendOptions& options);

}  // namespace titan::comm
