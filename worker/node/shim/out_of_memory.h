#pragma once

#include <cstdint>
#include <string>

#include "worker/node/shim/control_group.h"

namespace titan::shim {

// Counts kills of the kernel's out-of-memory killer: in the ranks' own control group if they have one, else in this
// process's memory cgroup (v2 or v1), or on the whole machine when the cgroup does not say. A rank that SIGKILL ended
// while the count grew ran out of memory.
class OutOfMemoryCounter {
 public:
  explicit OutOfMemoryCounter(const ControlGroup& group);
  // Kills so far; 0 when nothing on this machine counts them.
  int64_t read() const;

 private:
  ControlGroup group_;
  std::string path_;
};

}  // namespace titan::shim
