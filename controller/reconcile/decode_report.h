#pragma once

// What nodes send, as the core takes it. Nothing is refused here: a number that makes no sense stays as it is for the
// core to judge, an unknown enumerator becomes the unknown one, and a field that is not set has its default.

#include "controller/core/node_report.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

core::Registration decode(const v1::Register& hello);
core::NodeReport decode(const v1::WorkerMessage& message);

}  // namespace titan::reconcile
