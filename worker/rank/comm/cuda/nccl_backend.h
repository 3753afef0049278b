#pragma once

#include <vector>

#include "worker/rank/comm/communicator_splits.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

// Opens all communicators of a rank; they are connected on return. Only the world's needs a rendezvous, the others are
// split from it (split_groups.h). See Device::open_groups.
std::vector<c10::intrusive_ptr<c10d::Backend>> open_nccl_groups(const std::vector<Connection>& connections,
                                                                const device::BackendOptions& world, at::Device device);

// Opens a single group as a separate world in which neighbours send to each other.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const device::BackendOptions& options, at::Device device);

}  // namespace titan::comm
