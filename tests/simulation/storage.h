#pragma once

// The shared file system: one dump folder a job, with its committed steps and who has had it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "worker/node/core/attempt_record.h"

namespace titan::simulation {

struct DumpFolder {
  struct Published {
    node::AttemptKey by;
    int64_t step = 0;
  };
  std::string id;
  int64_t committed = 0;                // Newest step.
  std::vector<node::AttemptKey> taken;  // Each once, in the order in which they came. Knows nothing of the fence.
  std::vector<Published> published;     // Likewise.
};

using Storage = std::map<std::string, DumpFolder>;  // By path.

}  // namespace titan::simulation
