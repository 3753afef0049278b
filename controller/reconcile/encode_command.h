#pragma once

#include "controller/core/node_command.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

// Encodes a command to a node. The leader's epoch is not set. A Prepare has no launch file: the caller adds it, since
// it is the same for many nodes.
v1::ControllerMessage encode(const core::NodeCommand& command);

}  // namespace titan::reconcile
