#pragma once

#include "worker/rank/device/device.h"

namespace titan::comm {

// A device for dry runs: tensors have sizes but no memory (at::kMeta), and collectives complete when they are issued,
// without peers. Sizes are checked as the real backends require them.
std::unique_ptr<device::Device> make_fake_device();

}  // namespace titan::comm
