#pragma once

#include "common/rank_protocol/launch.h"
#include "worker/node/core/values.h"

namespace titan::node {

// Extracts the facts from a launch file. The launch does not contain its time, so start_unix_nanos is 0.
LaunchFacts facts_of(const rank_protocol::Launch& launch);

}  // namespace titan::node
