#pragma once

#include "controller/core/node_command.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

// What a node is told, as it is sent; without the leader's epoch, and a Prepare without what its ranks are launched
// with: that is the same for many nodes and sent beside it.
v1::ControllerMessage encode(const core::NodeCommand& command);

}  // namespace titan::reconcile
