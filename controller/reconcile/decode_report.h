#pragma once

// Decodes messages of nodes for the core. Nothing is refused here: the core checks implausible numbers, an unknown
// enumerator becomes kUnknown, and a field that is not set has its default.

#include "controller/core/node_report.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

core::Registration decode(const v1::Register& hello);
core::NodeReport decode(const v1::WorkerMessage& message);

}  // namespace titan::reconcile
