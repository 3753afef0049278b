#pragma once

// The shared file system: one dump folder per job, with its committed steps and its holders.

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
  int64_t committed = 0;  // Newest step.
  std::vector<node::AttemptKey>
      taken;  // Each attempt once, in the order in which they took the folder; independent of the fence.
  std::vector<Published> published;  // Each step once, in the order of publication.
};

using Storage = std::map<std::string, DumpFolder>;  // By path.

}  // namespace titan::simulation
