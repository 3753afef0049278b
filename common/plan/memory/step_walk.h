#pragma once

#include <vector>

#include "common/plan/memory/rank_memory.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::memory {

// Simulates one rank's step in the order of Executor, Stage and ShardUnit. `steps`: the rank's part of the schedule.
void walk_step(RankMemory& rank, const std::vector<pipeline::ScheduleStep>& steps);

}  // namespace titan::memory
