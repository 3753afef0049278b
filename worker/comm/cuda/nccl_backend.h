#pragma once

#include <vector>

#include "worker/comm/device.h"

namespace titan::comm {

// NCCL for one group: collectives on one communicator, messages on others.
//
// NCCL knows no tags and runs the operations of one communicator one after the other on each rank, and a send ends only
// when its receive has begun. So a communicator that carries messages both ways can stop for ever: two ranks that send
// to each other first, both with a receive queued behind. Here every ordered pair (sender, receiver) has a communicator
// of its own: on it the sender only sends and the receiver only receives, in one order (the receiver asks in the order
// in which the sender sends: runtime/engine/transfers.h), so that a message waits for nothing but earlier messages of
// its own way.
//
// A communicator's first use blocks the host until the other rank comes. Left to the first message that could be
// circular too (a rank that asks early for a gradient, whose sender waits for the activation). So groups that send have
// their ways before the first message, and use no others (open_nccl_groups): pipelines and rings those between
// neighbours, asynchronous tensor parallelism all. In a group that was made alone the first message opens the ways
// between neighbours, all ranks in one order.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions& options, at::Device device);

// Every communicator of a rank, open when it returns: the world's is connected, and the others are cut from it, which
// takes no rendezvous of their own (cuts.h says in which order all ranks cut). See Device::open_groups.
std::vector<c10::intrusive_ptr<c10d::Backend>> open_nccl_groups(const std::vector<Connection>& connections,
                                                                const BackendOptions& world, at::Device device);

}  // namespace titan::comm
