#pragma once

// Decides whether a job's ranks fit into the memory of the nodes' devices, and suggests what would make them fit.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "common/plan/memory/estimate.h"

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

// What one device has to hold at most, for all ranks that share it; nothing when it cannot be told. On CPUs the host's
// memory is the device's.
std::optional<int64_t> device_bytes(const config::JobConfig& config);

// "set activation_checkpoint.mode = \"full\", which takes about 31.0 GiB": the first change that fits into `room`
// bytes of each of `devices` devices, beginning with those that shrink the largest part; or all of them, when only
// together they fit. When only more devices would do, it says how many there are and how many it takes.
std::string remedy(const config::JobConfig& config, const memory::Parts& peak, int64_t room, int64_t devices);

}  // namespace titan::planner
