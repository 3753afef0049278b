#include "worker/rank/topology/placement.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace titan::topology {
namespace {

// Returns part `part` of `parts` of a list; the lengths differ by at most one element.
template <typename T>
std::vector<T> share(const std::vector<T>& whole, size_t part, size_t parts) {
  return {whole.begin() + static_cast<std::ptrdiff_t>(part * whole.size() / parts),
          whole.begin() + static_cast<std::ptrdiff_t>((part + 1) * whole.size() / parts)};
}

std::vector<CpuSet> cores_of(const Machine& machine, const CpuSet& cpus) {
  std::map<int, CpuSet> by_first;
  for (const int cpu : cpus) {
    const auto found = machine.core.find(cpu);
    by_first[found == machine.core.end() ? cpu : found->second].insert(cpu);
  }
  std::vector<CpuSet> cores;
  for (auto& [first, core] : by_first) cores.push_back(std::move(core));
  return cores;
}

CpuSet share_of(const Machine& machine, const CpuSet& cpus, size_t part, size_t parts) {
  const std::vector<CpuSet> cores = cores_of(machine, cpus);
  CpuSet own;
  if (cores.size() >= parts) {
    for (const CpuSet& core : share(cores, part, parts)) own.insert(core.begin(), core.end());
  } else if (cpus.size() >= parts) {
    const std::vector<int> all(cpus.begin(), cpus.end());
    for (const int cpu : share(all, part, parts)) own.insert(cpu);
  } else {
    own = cpus;
  }
  return own;
}

CpuSet cpus_of(const Machine& machine, const std::vector<int>& ids) {
  CpuSet cpus;
  for (const NumaNode& node : machine.nodes) {
    if (std::find(ids.begin(), ids.end(), node.id) != ids.end()) cpus.insert(node.cpus.begin(), node.cpus.end());
  }
  return cpus;
}

}  // namespace

absl::StatusOr<Homes> homes_of_gpus(const Machine& machine, const std::vector<std::optional<int>>& gpu_nodes) {
  Homes homes;
  for (size_t rank = 0; rank < gpu_nodes.size(); ++rank) {
    if (gpu_nodes[rank]) {
      homes.push_back({*gpu_nodes[rank]});
    } else if (machine.nodes.size() == 1) {
      homes.push_back({machine.nodes[0].id});
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat("the kernel does not report on which NUMA node GPU ", rank, " is"));
    }
  }
  return homes;
}

Homes homes_of_cpu_ranks(const Machine& machine, int ranks) {
  std::vector<int> ids;
  for (const NumaNode& node : machine.nodes) {
    if (!intersection(node.cpus, machine.allowed).empty()) ids.push_back(node.id);
  }
  const size_t nodes = ids.size(), count = static_cast<size_t>(ranks);
  Homes homes;
  for (size_t rank = 0; rank < count; ++rank) {
    homes.push_back(nodes > count ? share(ids, rank, count)
                                  : std::vector<int>(nodes > 0 ? 1 : 0, nodes > 0 ? ids[rank * nodes / count] : 0));
  }
  return homes;
}

absl::StatusOr<CpuPlacement> place(const Machine& machine, const CpuSet& inherited, const Homes& homes,
                                   int local_rank) {
  if (machine.nodes.empty()) return absl::FailedPreconditionError("the kernel reports no CPUs");
  if (!contains(inherited, machine.allowed)) {
    return absl::FailedPreconditionError(
        absl::StrCat("it was started on CPUs ", to_text(inherited), " and stays there"));
  }
  const std::vector<int>& home = homes.at(static_cast<size_t>(local_rank));
  const CpuSet usable = intersection(cpus_of(machine, home), machine.allowed);
  if (usable.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CPU of NUMA node ", absl::StrJoin(home, ","), " may be used here"));
  }
  const auto here = homes.begin() + local_rank;
  const auto before = static_cast<size_t>(std::count(homes.begin(), here, home));
  const auto all = static_cast<size_t>(std::count(homes.begin(), homes.end(), home));
  return CpuPlacement{.cpus = share_of(machine, usable, before, all),
                      .nodes = home,
                      .prefers_memory = home.size() == 1 && machine.nodes.size() > 1};
}

}  // namespace titan::topology
