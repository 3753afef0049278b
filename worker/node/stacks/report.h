#pragma once

// Captures the stacks of one process's threads and formats them.

#include <functional>
#include <string>
#include <vector>

#include "worker/node/stacks/unwind.h"

namespace titan::stacks {

struct ThreadStack {
  ThreadFacts facts;
  Stack stack;
  std::string missing;  // Why the stack is missing.
  std::string kernel;   // Position in the kernel, for a thread without a stack.
};

struct ProcessStacks {
  pid_t pid = 0;
  std::vector<ThreadStack> threads;  // The main thread first.
};

// Formats the stacks; threads with equal stacks are listed together. At most 256 KiB.
std::string report(const ProcessStacks& process);

// Returns only what /proc shows, with the reason `why` the stacks are missing.
ProcessStacks without_stacks(pid_t pid, const std::string& why);

// Captures one process until `deadline_nanos` (monotonic) and calls the callback twice: first without function names,
// because these require reading files that may be large or remote.
void capture_process(pid_t pid, int64_t deadline_nanos, size_t max_frames, ElfFiles& files,
                     const std::function<void(const ProcessStacks&)>& emit);

}  // namespace titan::stacks
