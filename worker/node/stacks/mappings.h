#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/host/descriptor.h"

namespace titan::stacks {

// A line of /proc/PID/maps.
struct Mapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  unsigned major = 0, minor = 0;
  uint64_t inode = 0;  // 0: of no file.
  std::string path;
};

std::vector<Mapping> mappings_of(pid_t pid);

// The file that is mapped there: the very one, also when it was deleted since, where the kernel gives it (to root),
// else what its path leads to. That may be anything by now, a device or a pipe, and is opened as a plain file or not at
// all. Empty: it cannot be had.
host::Descriptor open_mapped(pid_t pid, const Mapping& mapping);

}  // namespace titan::stacks
