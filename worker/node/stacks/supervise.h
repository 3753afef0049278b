#pragma once

// Captures the stacks of processes from a separate process, which may crash or hang without harm.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace titan::stacks {

struct Request {
  std::vector<pid_t> pids;
  int64_t deadline_milliseconds = 5000;  // For all processes together.
  size_t max_frames = 64;
};

struct Answer {
  std::string text;
  bool anything = false;  // The process exists.
};

// Calls `done` for each process in order, by the deadline. A separate process does the work and is abandoned when it
// crashes or hangs: it reads files and names of untrusted programs, which may be on storage that does not answer. A
// process that could not be captured is described from /proc. Each process gets an equal share of the remaining time.
void supervise(const Request& request, const std::function<void(size_t place, const Answer& answer)>& done);

}  // namespace titan::stacks
