#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/topology/machine.h"

namespace titan::topology {

// CPUs and NUMA nodes of one rank.
struct CpuPlacement {
  CpuSet cpus;
  std::vector<int> nodes;       // NUMA nodes of these CPUs, by id.
  bool prefers_memory = false;  // Prefer memory of nodes[0], the only one, because the machine has other nodes.
};

// The NUMA nodes of each local rank, by id.
using Homes = std::vector<std::vector<int>>;

// Assigns each rank to the node of its GPU (one entry per rank; none: unknown). Errors: FailedPrecondition if a GPU's
// node is unknown and the machine has several nodes.
absl::StatusOr<Homes> homes_of_gpus(const Machine& machine, const std::vector<std::optional<int>>& gpu_nodes);

// Assigns ranks without GPUs evenly to the nodes, neighbouring ranks together. With fewer ranks than nodes a rank has
// several.
Homes homes_of_cpu_ranks(const Machine& machine, int ranks);

// Returns the CPUs of one rank: the usable CPUs of its home nodes, divided evenly among the ranks of the same home, by
// whole cores if there are enough. If there are more ranks than CPUs, they share all of them.
//
// `inherited` is the affinity with which the process started. If it excludes CPUs that the control group has, the user
// has chosen it and it stays. Errors: FailedPrecondition in that case, if nothing is known about the machine, or if the
// home has no usable CPU.
absl::StatusOr<CpuPlacement> place(const Machine& machine, const CpuSet& inherited, const Homes& homes, int local_rank);

}  // namespace titan::topology
