#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::shim {

// Field 22 of /proc/PID/stat: when the process began. With the pid and the boot it is the process's identity. 0: no
// such process.
int64_t start_ticks(pid_t pid);

// State of this very process, as /proc/PID/stat has it; 0: it is gone. A zombie is. Errors: /proc does not say, for
// want of descriptors or memory, and it may live.
absl::StatusOr<char> process_state(pid_t pid, int64_t ticks);

// Is this very process alive, as far as can be told?
bool alive(pid_t pid, int64_t ticks);

// Random id of this boot of the kernel; pids and ticks of another boot mean nothing.
const std::string& boot_id();

int64_t monotonic_nanos();
int64_t unix_nanos();
inline constexpr int64_t kMilli = 1'000'000;  // Nanoseconds of a millisecond.
inline constexpr int64_t kSecond = 1'000'000'000;

// SIGKILLs every process whose environment holds the entry "NAME=value"; returns how many. Finds what ranks left behind
// when the shim, their parent and reaper, is gone. An error when this process lacks what it takes to look
// (descriptors): then some may be left.
absl::StatusOr<int> kill_marked(const std::string& entry);

}  // namespace titan::shim
