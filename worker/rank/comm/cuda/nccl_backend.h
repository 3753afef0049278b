#pragma once

#include <vector>

#include "worker/rank/comm/communicator_cuts.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

// Every communicator of a rank, open and connected when it returns: the world's has a rendezvous, and the others are
// cut from it, which takes none (split_groups.h). See Device::open_groups.
std::vector<c10::intrusive_ptr<c10d::Backend>> open_nccl_groups(const std::vector<Connection>& connections,
                                                                const device::BackendOptions& world, at::Device device);

// One group alone, as a world of its own in which neighbours send to each other.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const device::BackendOptions& options, at::Device device);

}  // namespace titan::comm
