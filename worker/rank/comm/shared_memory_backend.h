#pragma once

#include <memory>

#include "worker/rank/device/device.h"

namespace titan::comm {

class SharedMemoryGroups;

// Wraps `sockets`: collectives and messages use memory that the ranks share (shared_memory_group.h) if all ranks of the
// group (at most kMaxMembers) are processes of this machine, can access each other's memory and want it. They agree
// through the store, so either all of them use it or none. Reductions that shared_sum.h does not support and tensors
// that are not on the CPU still use `sockets`. `groups`: all groups of this rank. Throws c10::DistError if another rank
// does not come in time.
c10::intrusive_ptr<c10d::Backend> through_shared_memory(c10::intrusive_ptr<c10d::Backend> sockets,
                                                        const device::BackendOptions& options,
                                                        std::shared_ptr<SharedMemoryGroups> groups);

// Returns whether `backend` uses shared memory.
bool shares_memory(const c10d::Backend& backend);

}  // namespace titan::comm
