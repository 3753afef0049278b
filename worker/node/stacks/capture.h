#pragma once

// Copies the registers and the newest part of the stack of each thread of a process, while the threads are stopped.

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
  ThreadFacts facts;    // Read just before the stop.
  std::string missing;  // Why registers and stack are missing. Empty: they are present.
  Registers registers;
  std::vector<std::byte> stack;  // Starts at the stack pointer.
};

// Captures all threads of a process. They are stopped while their state is copied, about a millisecond for forty
// threads on idle processors; no disk is read during that time. PTRACE_SEIZE sends no signal, a process that was
// stopped stays stopped, and if this process is killed, the kernel resumes the threads. A waiting system call is
// restarted, except the few that end with EINTR after a debugger stop (signal(7): epoll_wait, for example). Threads
// that do not stop by `deadline_nanos` (monotonic) are left alone. The calling process must have SIGCHLD blocked and
// end soon afterwards, which releases threads that stop late.
std::vector<Capture> capture_threads(pid_t pid, int64_t deadline_nanos);

}  // namespace titan::stacks
