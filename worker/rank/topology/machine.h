#pragma once

// Reads what the kernel tells of a machine's CPUs, as sets of CPUs, NUMA nodes and cores.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace titan::topology {

using CpuSet = std::set<int>;  // The kernel's numbers of logical CPUs.

// The kernel's notation: "0-3,8,10-11", with or without a line end; "" is the empty set. None: it is something else.
std::optional<CpuSet> parse_cpu_list(std::string_view text);
std::string to_text(const CpuSet& cpus);

CpuSet intersection(const CpuSet& one, const CpuSet& other);
bool contains(const CpuSet& whole, const CpuSet& part);

struct NumaNode {
  int id = 0;
  CpuSet cpus;  // Online ones.
};

// What the kernel tells of a machine's CPUs.
struct Machine {
  CpuSet online;   // Empty: it tells nothing.
  CpuSet allowed;  // Those of them that this process's control group may use; all where the group does not say.
  std::vector<NumaNode> nodes;  // Those that have CPUs, by id. A kernel that knows no NUMA: one with all CPUs.
  std::map<int, int> core;      // Of a CPU: the lowest CPU of the same core. Without an entry a CPU is a core.
};

// Reads {root}/sys and {root}/proc; `root` is empty but in tests. Never fails: what cannot be read is left out.
Machine read_machine(const std::string& root = "");

// The NUMA node of a PCI device ("0000:3B:00.0", capitals or not). None: the kernel does not tell, as in many virtual
// machines.
std::optional<int> node_of_device(const std::string& pci_address, const std::string& root = "");

}  // namespace titan::topology
