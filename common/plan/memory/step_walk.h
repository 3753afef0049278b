#pragma once

#include <vector>

#include "common/plan/memory/rank_memory.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::memory {

// Takes one rank through a step, as Executor, Stage and ShardUnit drive it. `steps`: the rank's part of the schedule.
void walk_step(RankMemory& rank, const std::vector<pipeline::Step>& steps);

}  // namespace titan::memory
