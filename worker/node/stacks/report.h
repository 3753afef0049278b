#pragma once

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

}  // namespace titan::stacks
