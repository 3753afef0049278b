#pragma once

// Whether a job's ranks fit into the memory of the nodes' devices, and what would make them fit.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::planner {

// One node that has devices of the job's kind.
struct Room {
  int devices = 0;
  int64_t device_memory_bytes = 0;  // Of each; 0: not known, and taken to be enough.
};

// What a job takes at its peak (common/plan/memory/estimate.h) against what the nodes have, its largest part, and the
// least change found that fits; nothing when enough nodes are roomy, or when the job's peak cannot be told. `config` is
// valid and resolved. Where the ranks would be placed is not asked.
std::optional<std::string> memory_misfit(const config::JobConfig& config, const std::vector<Room>& nodes);

}  // namespace titan::planner
