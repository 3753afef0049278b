#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace titan::shim {

// Field 22 of /proc/PID/stat: when the process began. With the pid and the boot it is the process's identity. 0: no
// such process.
int64_t start_ticks(pid_t pid);

// Is this very process alive? A zombie is not.
bool alive(pid_t pid, int64_t ticks);

// Random id of this boot of the kernel; pids and ticks of another boot mean nothing.
const std::string& boot_id();

int64_t monotonic_nanos();
int64_t unix_nanos();

// SIGKILLs every process whose environment holds the entry "NAME=value"; returns how many. Finds what ranks left behind
// when the shim, their parent and reaper, is gone.
int kill_marked(const std::string& entry);

}  // namespace titan::shim
