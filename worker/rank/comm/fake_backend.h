#pragma once

#include "worker/rank/device/device.h"

namespace titan::comm {

// A device for dry runs: tensors have sizes and no memory (at::kMeta), and the operations of its groups are over as
// soon as they are issued, without peers. Sizes are checked as the real backends would need them.
std::unique_ptr<device::Device> make_fake_device();

}  // namespace titan::comm
