#pragma once

// Attributes kills of the kernel's out-of-memory killer to ranks.

#include <sys/types.h>

#include <cstdint>

#include "worker/node/shim/control_group.h"

namespace titan::shim {

struct MemoryKills {
  OutOfMemoryCounter counter;
  int64_t seen = counter.read();  // Number of kills that are attributed, or known to belong to other processes.
  int64_t looked = 0;             // Number of kills at the last check.
  int64_t changed_at = 0;         // Monotonic nanoseconds at which that number last changed.
};

// Gives up kills after which no rank ended for 30 s: they belong to other processes and must not be attributed to a
// rank that is killed later. Call it regularly.
void check_oom_kills(MemoryKills& kills);

// Returns whether there is a kill that is not attributed yet. Call it once for each rank that SIGKILL ended: each kill
// counts for one rank.
bool take_kill(MemoryKills& kills);

// If the rank could not enter `group`, which then does not count its kills, counts those of this process's group
// instead.
void check_group_entry(MemoryKills& kills, const ControlGroup& group, pid_t rank);

}  // namespace titan::shim
