#pragma once

// The shared file system: one dump folder a job, with its fence and its committed steps.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace titan::simulation {

struct DumpFolder {
  std::string id;
  int fence = 0;                                   // Highest attempt that has claimed it.
  int64_t committed = 0;                           // Newest step.
  std::vector<std::pair<int, int64_t>> published;  // Attempt and step, in the order in which they came.
  std::map<int, std::string> runs;                 // By attempt: which start of it has published.
};

using Storage = std::map<std::string, DumpFolder>;  // By path.

}  // namespace titan::simulation
