#pragma once

// Decides whether a job's ranks fit into the memory of the nodes' devices, and suggests what would make them fit.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/memory/estimate.h"

namespace titan::planner {

// Device memory of one node that has devices of the job's kind.
struct NodeMemory {
  int devices = 0;
  int64_t device_memory_bytes = 0;  // Per device; 0: not known, assumed to be enough.
};

// Explains that a job does not fit: its peak (common/plan/memory/estimate.h) with its parts, what the nodes have, and
// the first change found that makes it fit. Returns nothing when enough nodes have the memory, or when the peak cannot
// be estimated. `config` must be valid and resolved. Placement is not considered.
std::optional<std::string> memory_misfit(const config::JobConfig& config, const std::vector<NodeMemory>& nodes);

// Returns the peak bytes of one device, for all ranks that share it, or nothing when the peak cannot be estimated. On
// CPUs this includes what is offloaded to the host.
std::optional<int64_t> device_bytes(const config::JobConfig& config);

// Returns "set activation_checkpoint.mode = \"full\", which takes about 31.0 GiB": the first change that fits into
// `limit` bytes on each of `devices` devices, trying first those that shrink the largest part. If no single change
// fits, returns a combination that does. If only more devices would help, says so and how many there are.
std::string remedy(const config::JobConfig& config, const memory::Parts& peak, int64_t limit, int64_t devices);

}  // namespace titan::planner
