#pragma once

// Applies [resources] to a rank: the CPUs to which it is pinned and the kernels with which it computes.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/topology/machine.h"

namespace titan::runtime {

// The system calls that pinning needs.
struct Placing {
  std::string root;                            // Prefix of /sys and /proc. Empty except in tests.
  std::function<topology::CpuSet()> affinity;  // CPUs of the calling thread. Empty if unknown.
  // These two apply to the calling thread and to the threads that it starts later.
  std::function<absl::Status(const topology::CpuSet& cpus)> set_affinity;
  std::function<absl::Status(int numa_node)> prefer_memory;
};
Placing linux_placing();

struct Pinned {
  std::string words;    // For the log, after the rank's number: "runs on CPUs 0-15 of NUMA node 0".
  std::string warning;  // A requested binding that failed. May be empty.
};

// Returns whether this rank is to be pinned. With "auto" only GPU ranks are.
bool wants_pinning(const config::ResourcesSection& resources);

// Binds the calling thread, one of `local_ranks` ranks, to CPUs that no other rank has (resources.pin_cpus), near its
// GPU and with memory from there. A rank that moves between CPUs finds its caches cold, and one on the other side of
// the machine feeds its GPU through the link between both. `gpus`: PCI addresses by local rank; empty for CPU ranks. If
// something is unknown or fails, the rank stays unbound. This is a warning if `key` is "on" or the kernel refuses, and
// otherwise only logged.
Pinned pin_rank(const std::string& key, int local_rank, int local_ranks, const std::vector<std::string>& gpus,
                const Placing& placing);

// Selects the level of kernels by resources.kernels, for a rank on the CPU, before it computes. Throws Failure if this
// machine, `host`, lacks it. For bfloat16, rank 0 logs the choice.
void choose_cpu_kernels(const RankJob& job, const std::string& host);

// Selects kernels by parts_on_gpu() (runtime/step), for a rank on a GPU, after its device is made. For bfloat16, rank 0
// logs the choice.
void choose_gpu_kernels(const RankJob& job);

}  // namespace titan::runtime
