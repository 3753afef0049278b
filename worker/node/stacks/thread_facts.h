#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace titan::stacks {

// What /proc says of a thread, which is not touched for it.
struct ThreadFacts {
  pid_t tid = 0;
  std::string name;
  char state = '?';  // As proc(5) has it; '?': it is gone.
};

// The process's main thread first, the others ascending. None: it is gone.
std::vector<pid_t> threads_of(pid_t pid);

ThreadFacts facts_of(pid_t pid, pid_t tid);

// "sleeping", of a letter of proc(5).
const char* state_name(char state);

// Where it is in the kernel: "futex_wait_queue, system call 202". Empty when the kernel does not say.
std::string kernel_place(pid_t pid, pid_t tid);

// Names come from programs that nobody trusts: bytes that do not print become '?'.
std::string printable(std::string text);

}  // namespace titan::stacks
