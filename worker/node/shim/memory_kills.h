#pragma once

// Attributes kills of the kernel's out-of-memory killer to ranks.

#include <sys/types.h>

#include <cstdint>

#include "worker/node/shim/control_group.h"

namespace titan::shim {

struct MemoryKills {
  OutOfMemoryCounter counter;
  int64_t seen = counter.read();  // Kills that are accounted for,
  int64_t looked = 0;             // all of them at the last look,
  int64_t changed_at = 0;         // and when they were fewer.
};

// Call it now and then: a kill for memory after which no rank ends was that of another process, and is not for a rank
// that is killed later.
void check_oom_kills(MemoryKills& kills);

// Whether a kill is there that no other rank has taken. Call it once for each rank that SIGKILL ended: each kill is
// counted for one rank.
bool take_kill(MemoryKills& kills);

// Counts in the rank's process's own group from now on where the rank could not enter `group`, which does not count it.
void check_group_entry(MemoryKills& kills, const ControlGroup& group, pid_t rank);

}  // namespace titan::shim
