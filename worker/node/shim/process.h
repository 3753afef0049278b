#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace titan::shim {

// Returns field 22 of /proc/PID/stat, the start time of the process; 0 if there is no such process. Pid, start ticks
// and boot id identify a process.
int64_t start_ticks(pid_t pid);

// Returns the state letter of the process with this pid and start time; 0 if it is gone or a zombie. Errors: /proc
// cannot be read for lack of descriptors or memory, so the process may be alive.
absl::StatusOr<char> process_state(pid_t pid, int64_t ticks);

// Returns whether this process is alive; true if unknown.
bool alive(pid_t pid, int64_t ticks);

// Returns the kernel's random id of this boot. Pids and start ticks of another boot are meaningless.
const std::string& boot_id();

int64_t monotonic_nanos();
int64_t unix_nanos();
inline constexpr int64_t kMilli = 1'000'000;  // Nanoseconds of a millisecond.
inline constexpr int64_t kSecond = 1'000'000'000;

// Sends SIGKILL to every process with the entry "NAME=value" in its environment; returns their number. Finds what ranks
// left when the shim, their parent and reaper, is gone. Errors: this process lacks descriptors to look at all
// processes, so some may be left.
absl::StatusOr<int> kill_marked(const std::string& entry);

}  // namespace titan::shim
