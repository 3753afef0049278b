#pragma once

// Looks at one process's threads, and writes down where they are.

#include <functional>
#include <string>
#include <vector>

#include "worker/node/stacks/unwind.h"

namespace titan::stacks {

struct ThreadStack {
  ThreadFacts facts;
  Stack stack;
  std::string missing;  // Why there is no stack.
  std::string kernel;   // Where it is in the kernel, of one without a stack.
};

struct ProcessStacks {
  pid_t pid = 0;
  std::vector<ThreadStack> threads;  // The main one first.
};

// Threads with the same stack stand together. At most 256 KiB.
std::string report(const ProcessStacks& process);

// What /proc alone says, and why that is all.
ProcessStacks without_stacks(pid_t pid, const std::string& why);

// Looks at one process until `deadline_nanos` (monotonic), and tells what it sees twice: first without the functions'
// names, for which files have to be read that may be large or far away.
void look_at(pid_t pid, int64_t deadline_nanos, size_t most_frames, ElfFiles& files,
             const std::function<void(const ProcessStacks&)>& tell);

}  // namespace titan::stacks
