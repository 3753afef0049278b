#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/topology/machine.h"

namespace titan::topology {

// Where one rank of a machine runs.
struct Placement {
  CpuSet cpus;
  std::vector<int> nodes;       // NUMA nodes that these are on, by id.
  bool prefers_memory = false;  // Of nodes[0], the only one: the machine has others.
};

// The NUMA nodes of each local rank, by id.
using Homes = std::vector<std::vector<int>>;

// Each rank is at home where its GPU is (one entry a rank; none: the kernel does not tell). Errors: FailedPrecondition
// when a GPU's node is not known and there are several.
absl::StatusOr<Homes> homes_of_gpus(const Machine& machine, const std::vector<std::optional<int>>& gpu_nodes);

// Ranks without GPUs: as many on each node as on the others, neighbours together. With fewer ranks than nodes each has
// several.
Homes homes_of_cpu_ranks(const Machine& machine, int ranks);

// The CPUs of one rank: of its home's those that the process may use, divided evenly among the ranks of that home, by
// whole cores where there are enough. More ranks than CPUs share all of them.
//
// `inherited` is the affinity that the process began with. Where it leaves out CPUs that its control group has,
// somebody has chosen it, and it stays: FailedPrecondition, as when nothing is known of the machine or the home has no
// CPU that may be used.
absl::StatusOr<Placement> place(const Machine& machine, const CpuSet& inherited, const Homes& homes, int local_rank);

}  // namespace titan::topology
