#pragma once

#include <memory>

#include "worker/rank/comm/local_backend.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// Connects the store, settles the attempt and the seed and starts joining the groups on a thread of its own. `hub`:
// null when the rank is a process of its own. Throws Failure.
void rendezvous(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, RankContext& context);

}  // namespace titan::runtime
