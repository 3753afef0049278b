#pragma once

// Copies the registers and the newest part of the stack of each thread of a process, while the threads stand still.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/node/stacks/registers.h"
#include "worker/node/stacks/thread_facts.h"

namespace titan::stacks {

// A thread at one moment: its registers and a copy of the newest part of its stack.
struct Capture {
  ThreadFacts facts;    // From just before.
  std::string missing;  // Why there is nothing of the below; empty: there is.
  Registers registers;
  std::vector<std::byte> stack;  // From the stack pointer on.
};

// All threads of a process. They stand still until that much is copied, about a millisecond for forty threads where
// processors are idle, within which nothing is read from disks. PTRACE_SEIZE leaves no signal behind, a process that
// was stopped stays so, and when this process is killed the kernel lets the threads go on. A system call that waits is
// restarted, but for the few that end with EINTR after a debugger has looked at them (signal(7): epoll_wait, for one).
// Threads that do not stop by `deadline_nanos` (monotonic) stay as they are. The process that calls this has SIGCHLD
// blocked, and ends soon after: that is what releases threads that stop late.
std::vector<Capture> capture_threads(pid_t pid, int64_t deadline_nanos);

}  // namespace titan::stacks
