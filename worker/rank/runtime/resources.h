#pragma once

// Applies [resources] to a rank: the CPUs that it is pinned to, and the kernels that it computes with.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/topology/machine.h"

namespace titan::runtime {

// What pinning asks of the kernel.
struct Placing {
  std::string root;                            // Before /sys and /proc; empty but in tests.
  std::function<topology::CpuSet()> affinity;  // Of the calling thread; empty when it cannot be had.
  // These two are for the calling thread and those that it starts from then on.
  std::function<absl::Status(const topology::CpuSet& cpus)> set_affinity;
  std::function<absl::Status(int numa_node)> prefer_memory;
};
Placing linux_placing();

struct Pinned {
  std::string words;    // For the log, after the rank's number: "runs on CPUs 0-15 of NUMA node 0".
  std::string warning;  // What was wanted and failed.
};

// Whether this rank is to be pinned; with "auto" only GPU ranks are.
bool wants_pinning(const config::Resources& resources);

// Places the calling thread as one of `local_ranks` ranks on CPUs that no other rank has (resources.pin_cpus), near its
// GPU, with memory from there: a rank that wanders finds its caches cold, and one on the other side of the machine
// feeds its GPU through the link between both. `gpus`: PCI addresses by local rank; empty for CPU ranks. What cannot be
// known or done leaves the rank where it is: a warning where it was asked for in so many words (`key` is "on") or the
// kernel refuses, else only said.
Pinned pin_rank(const std::string& key, int local_rank, int local_ranks, const std::vector<std::string>& gpus,
                const Placing& placing);

// For a rank on the CPU, before it computes: its level of kernels, by resources.kernels. Throws Failure where this
// machine, `host`, lacks it. Rank 0 says what is chosen.
void choose_cpu_kernels(const RankJob& job, const std::string& host);

// For a rank on a GPU, once its device is made: parts_on_gpu (runtime/step). Rank 0 says what is chosen.
void choose_gpu_kernels(const RankJob& job);

}  // namespace titan::runtime
