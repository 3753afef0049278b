#pragma once

// Attributes kills of the kernel's out-of-memory killer to ranks.

#include <sys/types.h>

#include <cstdint>

#include "worker/node/shim/control_group.h"

namespace titan::shim {

struct MemoryKills {
  OutOfMemoryCounter counter;
  int64_t seen = counter.read();  // Number of kills that are attributed.
  int64_t looked = 0;             // Number of kills at the last check.
  int64_t changed_at = 0;         // Monotonic nanoseconds at which that number last changed.
};

// Call it regularly. A kill after which no rank ended belongs to another process, and must not be attributed to a rank
// that is killed later.
void check_oom_kills(MemoryKills& kills);

// Whether there is a kill that is not attributed to another rank. Call it once for each rank that SIGKILL ended: each
// kill counts for one rank.
bool take_kill(MemoryKills& kills);

// If the rank could not enter `group`, which then does not count its kills, counts those of this process's group
// instead.
void check_group_entry(MemoryKills& kills, const ControlGroup& group, pid_t rank);

}  // namespace titan::shim
