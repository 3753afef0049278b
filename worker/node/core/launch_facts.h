#pragma once

#include "common/rank_protocol/launch.h"
#include "worker/node/core/values.h"

namespace titan::node {

// What the launch says of itself; when it was written is not in it.
LaunchFacts facts_of(const rank_protocol::Launch& launch);

}  // namespace titan::node
