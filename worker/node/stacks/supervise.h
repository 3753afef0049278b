#pragma once

// Looks at the stacks of processes from a process of its own, which may crash or hang without harm.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace titan::stacks {

struct Request {
  std::vector<pid_t> pids;
  int64_t deadline_milliseconds = 5000;  // For all of them together.
  size_t most_frames = 64;
};

struct Answer {
  std::string text;
  bool anything = false;  // The process was there.
};

// Calls `done` for each process, in their order, by the deadline. A process of its own looks, and is given up when it
// crashes or stands still: the files and names that it reads are those of programs that nobody trusts, and may lie on
// storage that does not answer. Of a process whose turn was spoilt, /proc is told. Each gets an equal share of the time
// that is left, so that one of them does not take it all.
void supervise(const Request& request, const std::function<void(size_t place, const Answer& answer)>& done);

}  // namespace titan::stacks
