#include "worker/rank/runtime/resources.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "worker/rank/kernels/device_kernels.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/reporter.h"
#include "worker/rank/topology/placement.h"

namespace titan::runtime {
namespace {

// A CPU set that is larger than a cpu_set_t.
struct LargeSet {
  static constexpr int kCpus = 1 << 14;
  LargeSet() : set(CPU_ALLOC(kCpus)), bytes(CPU_ALLOC_SIZE(kCpus)) { CPU_ZERO_S(bytes, set); }
  ~LargeSet() { CPU_FREE(set); }
  LargeSet(const LargeSet&) = delete;
  LargeSet& operator=(const LargeSet&) = delete;

  cpu_set_t* const set;
  const size_t bytes;
};

topology::CpuSet affinity_of_thread() {
  const LargeSet large;
  topology::CpuSet cpus;
  if (::sched_getaffinity(0, large.bytes, large.set) != 0) return cpus;
  for (int cpu = 0; cpu < LargeSet::kCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, large.bytes, large.set)) cpus.insert(cpu);
  }
  return cpus;
}

absl::Status set_affinity_of_thread(const topology::CpuSet& cpus) {
  const LargeSet large;
  for (const int cpu : cpus) CPU_SET_S(cpu, large.bytes, large.set);
  if (::sched_setaffinity(0, large.bytes, large.set) == 0) return absl::OkStatus();
  return errno_status(errno, "sched_setaffinity");
}

// Uses a system call because only libnuma has a function for it.
absl::Status prefer_memory_of_node(int node) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask(static_cast<size_t>(node / kBits) + 1);
  mask[static_cast<size_t>(node / kBits)] |= 1UL << (node % kBits);
  // The kernel uses one bit less than the given size.
  if (::syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1) == 0) return absl::OkStatus();
  return errno_status(errno, "set_mempolicy");
}

absl::StatusOr<topology::CpuPlacement> choose(int local_rank, int local_ranks, const std::vector<std::string>& gpus,
                                              const Placing& placing) {
  const topology::Machine machine = topology::read_machine(placing.root);
  topology::Homes homes = topology::homes_of_cpu_ranks(machine, local_ranks);
  if (!gpus.empty()) {
    std::vector<std::optional<int>> nodes;
    for (int rank = 0; rank < local_ranks; ++rank) {
      const bool known = static_cast<size_t>(rank) < gpus.size();
      nodes.push_back(known ? topology::node_of_device(gpus[static_cast<size_t>(rank)], placing.root) : std::nullopt);
    }
    TITAN_ASSIGN_OR_RETURN(homes, topology::homes_of_gpus(machine, nodes));
  }
  return topology::place(machine, placing.affinity(), homes, local_rank);
}

}  // namespace

Placing linux_placing() {
  return {.root = "",
          .affinity = affinity_of_thread,
          .set_affinity = set_affinity_of_thread,
          .prefer_memory = prefer_memory_of_node};
}

bool wants_pinning(const config::ResourcesSection& resources) {
  return resources.pin_cpus == "on" || (resources.pin_cpus == "auto" && resources.device == "cuda");
}

Pinned pin_rank(const std::string& key, int local_rank, int local_ranks, const std::vector<std::string>& gpus,
                const Placing& placing) {
  const absl::StatusOr<topology::CpuPlacement> place = choose(local_rank, local_ranks, gpus, placing);
  absl::Status status = place.status();
  const bool refused = status.ok() && !(status = placing.set_affinity(place->cpus)).ok();
  if (!status.ok()) {
    const std::string why = absl::StrCat("is not bound to CPUs: ", std::string(status.message()));
    return {.words = why, .warning = refused || key == "on" ? absl::StrCat("resources.pin_cpus: it ", why) : ""};
  }
  Pinned pinned{.words = absl::StrCat("runs on CPUs ", topology::to_text(place->cpus), " of NUMA node ",
                                      absl::StrJoin(place->nodes, ","), " (resources.pin_cpus = ", key, ")"),
                .warning = ""};
  if (!place->prefers_memory) return pinned;
  if (const absl::Status preferred = placing.prefer_memory(place->nodes[0]); !preferred.ok()) {
    pinned.warning = absl::StrCat("resources.pin_cpus: memory of NUMA node ", place->nodes[0],
                                  " cannot be preferred: ", std::string(preferred.message()));
  }
  return pinned;
}

namespace {

bool says_so(const RankJob& job) { return job.rank == 0 && job.config.training.mixed_precision_param == "bfloat16"; }

}  // namespace

void choose_cpu_kernels(const RankJob& job, const std::string& host) {
  const std::string& wanted = job.config.resources.kernels;
  if (!kernels::choose(wanted)) {
    const std::optional<kernels::Level> best = kernels::best_level();
    throw Failure(rank_protocol::kExitBadConfig, "KERNEL_LEVEL",
                  absl::StrCat("resources.kernels is ", wanted, ", but the best level of this machine, ", host, ", is ",
                               best ? std::string(kernels::name(*best)) : "below avx2",
                               "; auto selects the best available level"));
  }
  if (!says_so(job)) return;
  const std::optional<kernels::Level> level = kernels::chosen_level();
  log_line(absl::StrCat("bfloat16 is computed by ",
                        level ? "Titan's kernels for " + std::string(kernels::name(*level)) : "LibTorch's operations",
                        " (resources.kernels = ", wanted, ")"));
}

void choose_gpu_kernels(const RankJob& job) {
  const kernels::DeviceParts parts = parts_on_gpu(job.config);
  kernels::choose_on_device(kernels::cuda_kernels(), parts);
  if (!says_so(job)) return;
  const char* what = parts.model && parts.loss ? "rows and cross-entropy"
                     : parts.model             ? "rows"
                     : parts.loss              ? "cross-entropy"
                                               : "nothing";
  log_line(
      absl::StrCat("for bfloat16, Titan's kernels compute ", what, ", and LibTorch's operations compute the rest"));
}

}  // namespace titan::runtime
