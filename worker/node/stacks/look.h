#pragma once

#include <functional>
#include <string>

#include "worker/node/stacks/report.h"

namespace titan::stacks {

// Looks at one process until `deadline_nanos` (monotonic), and tells what it sees twice: first without the functions'
// names, for which files have to be read that may be large or far away.
void look_at(pid_t pid, int64_t deadline_nanos, size_t most_frames, ElfFiles& files,
             const std::function<void(const ProcessStacks&)>& tell);

}  // namespace titan::stacks
