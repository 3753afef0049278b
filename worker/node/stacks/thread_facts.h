#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace titan::stacks {

// State of a thread from /proc, read without stopping it.
struct ThreadFacts {
  pid_t tid = 0;
  std::string name;
  char state = '?';  // See proc(5). '?': the thread is gone.
};

// Returns the thread ids of the process, the main thread first, the others ascending; empty if the process is gone.
std::vector<pid_t> threads_of(pid_t pid);

ThreadFacts facts_of(pid_t pid, pid_t tid);

// Returns the name of a state letter of proc(5), for example "sleeping".
const char* state_name(char state);

// Returns the position in the kernel, for example "futex_wait_queue, system call 202"; empty if the kernel does not
// show it.
std::string kernel_place(pid_t pid, pid_t tid);

// Replaces non-printable bytes by '?', because names come from untrusted programs.
std::string printable(std::string text);

}  // namespace titan::stacks
