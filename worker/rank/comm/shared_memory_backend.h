#pragma once

#include <memory>

#include "worker/rank/device/device.h"

namespace titan::comm {

class SharedMemoryGroups;

// `sockets`, whose collectives and messages go through memory that the ranks share (shared_memory_group.h) when all
// ranks of the group are processes of this machine, see each other's memory and want it: they agree on that in the
// store, so either all of them do or none. Reductions that shared_sum.h does not know and tensors elsewhere than on the
// CPU are left to `sockets`. `groups` are this rank's. Throws c10::DistError when another rank does not come in time.
c10::intrusive_ptr<c10d::Backend> through_shared_memory(c10::intrusive_ptr<c10d::Backend> sockets,
                                                        const device::BackendOptions& options,
                                                        std::shared_ptr<SharedMemoryGroups> groups);

// Whether they agreed to.
bool shares_memory(const c10d::Backend& backend);

}  // namespace titan::comm
